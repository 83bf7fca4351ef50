"""A byte-level BPE tokenizer with a few hundred merges, trained here on a few lines of JSON and prose."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END, PAD = 0, 1  # "<|end|>" ends an answer
_TEXTS = [
    '{"name": "Ada", "age": 36, "tags": ["maths", "engines"], "born": true}',
    '{"name": "Alan", "age": 41, "tags": [], "born": false, "note": null}',
    '{\n  "city": "Paris",\n  "items": [\n    1,\n    2\n  ]\n}',
    "yes no maybe: the answer is yes, the answer is no, the answer is maybe",
]


@cache
def bpe_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=1,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS * 3, trainer)
    return tokenizer
