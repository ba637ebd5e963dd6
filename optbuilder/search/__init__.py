"""action=search: the best plan for a model on a machine within limits, and the reasons for it."""
