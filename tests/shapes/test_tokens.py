"""The tokenizers: our words are single tokens, any other text passes too, saving loses nothing."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from optbuilder.shapes import draw, tokens

TOKENIZERS = {"first": tokens.clip(tokens.END), "second": tokens.clip("!"), "t5": tokens.t5()}
OTHER = ["", "a photo of a cat, 35mm", "Ein ROTER Kreis", "汉字 🎉", "word " * 100, "<|endoftext|> </s>"]


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The padded token ids the pipes use."""
    return tokenizer(text, padding="max_length", max_length=tokens.LENGTH, truncation=True).input_ids


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("word", tokens.WORDS)
def test_every_word_is_one_token(name: str, word: str) -> None:
    assert len(TOKENIZERS[name](word, add_special_tokens=False).input_ids) == 1


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_longest_prompt_fits(name: str) -> None:
    prompt = draw.Drawing("triangle", "large", "orange", "yellow", 0, 0, 1).prompt
    assert TOKENIZERS[name].eos_token_id in ids(TOKENIZERS[name], prompt)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", OTHER)
def test_any_text_becomes_known_ids(name: str, text: str) -> None:
    found = ids(TOKENIZERS[name], text)
    assert len(found) == tokens.LENGTH and all(0 <= i < len(TOKENIZERS[name]) for i in found)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_saved_tokenizers_read_the_same(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]
    tokenizer.save_pretrained(tmp_path)
    loaded = type(tokenizer).from_pretrained(tmp_path)
    for text in [*OTHER, "a large red circle on a blue background"]:
        assert ids(loaded, text) == ids(tokenizer, text)


def test_merges_do_not_depend_on_the_run() -> None:
    assert tokens.merges() == tokens.merges()
