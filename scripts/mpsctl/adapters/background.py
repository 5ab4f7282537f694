"""A call that goes on beside its caller: for answers that others take their time to give."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """``call`` in a thread of its own, begun at once. The end of the program does not wait for it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._returned: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._returned.append(self._call())
        except BaseException as error:
            self._raised.append(error)

    def result(self, bound_s: Optional[float] = None) -> T:
        """What the call returns or raises.

        :raises TimeoutError: if it does neither within ``bound_s`` seconds; it is left alone then.
        """
        self._thread.join(bound_s)
        if self._raised:
            raise self._raised[0]
        if self._returned:
            return self._returned[0]
        raise TimeoutError
