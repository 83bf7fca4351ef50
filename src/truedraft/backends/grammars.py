"""The grammar compiler of one target, made when the first grammar is asked for."""

from __future__ import annotations

import threading

from truedraft.backends.tokenizer import ModelTokenizer
from truedraft.contract.request import Grammar
from truedraft.contract.specs import TargetSpec
from truedraft.engine.grammar import GrammarCompiler, GrammarConstraint


class LazyGrammars:
    """Reading a large vocabulary takes about a second, which most servers never need."""

    def __init__(self, tokenizer: ModelTokenizer, spec: TargetSpec) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    def compile(self, grammar: Grammar) -> GrammarConstraint:
        """Blocking, from any thread. Raises RequestError for a grammar that cannot be read."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    self._tokenizer.fast.to_str(),
                    vocab_size=self._spec.vocab_size,
                    eos_ids=self._spec.eos_ids,
                )
        return self._compiler.compile(grammar)
