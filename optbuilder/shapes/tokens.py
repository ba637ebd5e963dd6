"""The tokenizers of the shapes models: CLIP's byte pairs and T5's unigrams, cut down to the words of the prompts."""

import json
import string

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5Tokenizer

from optbuilder.shapes import draw

LENGTH = 16  # tokens of a padded prompt
START, END = "<|startoftext|>", "<|endoftext|>"
WORD_END = "</w>"
WORDS = ("a", "an", "on", "background", *draw.SHAPES, *draw.COLOURS, *filter(None, draw.RADII))


def merges() -> list[tuple[str, str]]:
    """The byte pairs to join, in order, until each of our words is one token."""
    model = Tokenizer(models.BPE(end_of_word_suffix=WORD_END))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=10_000, end_of_word_suffix=WORD_END, show_progress=False)
    # A word's place in the list sets how often it is shown, which breaks ties between equally frequent pairs.
    model.train_from_iterator([f"{word} " * (len(WORDS) - i) for i, word in enumerate(WORDS)], trainer)
    return [tuple(pair) for pair in json.loads(model.to_str())["model"]["merges"]]


def clip(pad: str) -> CLIPTokenizer:
    """A CLIP tokenizer that pads with this token: END for the first of SDXL's encoders, "!" for the second."""
    pairs = merges()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # "!" comes first, as in CLIP
    pieces = [*letters, *(letter + WORD_END for letter in letters), *map("".join, pairs), START, END]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocabulary, pairs, pad_token=pad, model_max_length=LENGTH)


def t5() -> T5Tokenizer:
    """A T5 tokenizer: whole words where it knows them, single characters or <unk> elsewhere."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(f"\u2581{word}", -1.0) for word in WORDS]
    pieces += [(character, -10.0) for character in dict.fromkeys(string.printable.strip())]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=LENGTH)
