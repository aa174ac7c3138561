"""Flow control of a connection, with a second reason to pause reading."""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["HeldFlow"]


class HeldFlow(FlowControl):
    """uvicorn's flow control. While it is held, nothing is read, whatever uvicorn asks for."""

    held = False

    def hold(self) -> None:
        if not self.held:
            self.held = True
            if not self.read_paused and not self._transport.is_closing():
                self._transport.pause_reading()

    def free(self) -> None:
        if self.held:
            self.held = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()

    def pause_reading(self) -> None:
        if self.held:
            self.read_paused = True
        else:
            super().pause_reading()

    def resume_reading(self) -> None:
        if self.held:
            self.read_paused = False
        else:
            super().resume_reading()
