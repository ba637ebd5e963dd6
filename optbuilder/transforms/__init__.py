"""The transform functions, one module per stage: `(pipe, *, options) -> pipe`. None imports torch at its top."""
