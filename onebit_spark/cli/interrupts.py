"""Ctrl-C (SIGINT) and SIGTERM: a job ends in order, with the exit code that shells expect.

Python ignores an exception in a finaliser or in the callback of a weak reference, and a signal may come in the middle
of one. So KeyboardInterrupt is raised again until somebody handles it.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = signal.SIGALRM  # what this process sends itself
AGAIN_SECONDS = 0.3
HUSH_SECONDS = 2.0  # the most that a busy or dead JVM is waited for


class Interrupts:
    """Within it, the first signal raises KeyboardInterrupt and is remembered; a second one ends the process at once.

    Only the main thread can wait for signals. In another one nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._hush: Callable[[], None] | None = None
        self._noticed = threading.Event()
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in (*SIGNALS, AGAIN)}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notice()
        if self.received is not None:
            logging.disable(logging.NOTSET)
            sys.unraisablehook = self._unraisable_hook
        self._handle(self._before)

    def listen(self, hush: Callable[[], None] | None = None) -> None:
        """Wait for the signals: again where a Spark session has begun, whose own handler has taken our place.

        ``hush`` keeps Spark from logging what breaks off. It runs in another thread: the signal may come in the middle
        of a call of the JVM, and a second call from the same thread fails.
        """
        self._hush = hush
        if self.received is None:
            self._handle(dict.fromkeys(SIGNALS, self._receive))

    def notice(self) -> None:
        """Whoever handles KeyboardInterrupt says so. It is not raised again."""
        self._noticed.set()

    @contextmanager
    def in_words(self, advice: Callable[[], str]) -> Iterator[None]:
        """Give the KeyboardInterrupt of the body the advice while the JVM, which sees the files, still runs.

        If it ended with the signal too, as under spark-submit, any exception may come first.
        """
        try:
            yield
        except BaseException as error:
            if self.received is None and not isinstance(error, KeyboardInterrupt):
                raise
            self.notice()
            words = ""
            with suppress(Exception):
                words = advice()
            raise KeyboardInterrupt(words) from error

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self.received or signal.SIGINT)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._handle(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        logging.disable()  # py4j logs the traceback of the call that it is in
        sys.unraisablehook = lambda _: None
        if self._hush is not None:
            hushing = threading.Thread(target=self._hush, daemon=True)
            hushing.start()
            hushing.join(HUSH_SECONDS)
        self._handle({AGAIN: self._raise_again})
        threading.Thread(target=self._insist, daemon=True).start()
        raise KeyboardInterrupt

    def _insist(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._noticed.wait(AGAIN_SECONDS):
            if sys._current_exceptions().get(main) in (None, (None, None, None)):  # else it is on its way out
                signal.pthread_kill(main, AGAIN)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if not self._noticed.is_set():
            raise KeyboardInterrupt

    @staticmethod
    def _handle(handlers: dict[int, Any]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
