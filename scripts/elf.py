"""What a shared library needs of the system that loads it, as its ELF file says."""

import struct
from pathlib import Path

# Names of sections' types, and of entries of the dynamic section.
_DYNSYM, _VERSYM, _VERNEED, _DYNAMIC = 11, 0x6FFFFFFF, 0x6FFFFFFE, 6
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29


class Library:
    """A library of 64 bits, little-endian: x86-64 or aarch64."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()
        if self._bytes[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path} is no ELF file of 64 bits")
        at, size, count = struct.unpack_from("<Q", self._bytes, 40)[0], *struct.unpack_from("<HH", self._bytes, 58)
        # type, offset, size, link, information, size of an entry
        self._sections = []
        for section in range(count):
            _, of, _, _, offset, length, link, info, _, entry = struct.unpack_from(
                "<IIQQQQIIQQ", self._bytes, at + section * size
            )
            self._sections.append((of, offset, length, link, info, entry))
        self.needed, self.paths = self._dynamic()
        self.versions = self._versions()
        self.unversioned = self._unversioned()

    def _of(self, kind: int) -> tuple[int, int, int, int, int, int] | None:
        return next((section for section in self._sections if section[0] == kind), None)

    def _text(self, strings: int, at: int) -> str:
        begin = self._sections[strings][1] + at
        return self._bytes[begin : self._bytes.index(b"\0", begin)].decode()

    def _dynamic(self) -> tuple[list[str], list[str]]:
        """The libraries that it needs, and paths where they are looked for."""
        needed, paths = [], []
        section = self._of(_DYNAMIC)
        if section is not None:
            _, offset, length, strings, _, _ = section
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<QQ", self._bytes, at)
                if tag == _NEEDED:
                    needed.append(self._text(strings, value))
                elif tag in (_RPATH, _RUNPATH):
                    paths.append(self._text(strings, value))
        return needed, paths

    def _versions(self) -> dict[str, list[str]]:
        """The symbols that it needs, by their version: `GLIBC_2.17`."""
        need, versym, symbols = self._of(_VERNEED), self._of(_VERSYM), self._of(_DYNSYM)
        if need is None or versym is None or symbols is None:
            return {}
        names = {}
        _, at, _, strings, count, _ = need
        for _ in range(count):
            _, parts, _, first, following = struct.unpack_from("<HHIII", self._bytes, at)
            part = at + first
            for _ in range(parts):
                _, _, number, name, then = struct.unpack_from("<IHHII", self._bytes, part)
                names[number] = self._text(strings, name)
                part += then
            at += following
        made: dict[str, list[str]] = {name: [] for name in names.values()}
        for at in range(symbols[2] // 24):
            name = struct.unpack_from("<I", self._bytes, symbols[1] + 24 * at)[0]
            number = struct.unpack_from("<H", self._bytes, versym[1] + 2 * at)[0] & 0x7FFF
            if number in names:
                made[names[number]].append(self._text(symbols[3], name))
        return made

    def _unversioned(self) -> list[str]:
        """The symbols that it needs of whoever has them: without one it cannot be loaded, or not be called."""
        versym, symbols = self._of(_VERSYM), self._of(_DYNSYM)
        if versym is None or symbols is None:
            return []
        made = []
        # The first one stands for none.
        for at in range(1, symbols[2] // 24):
            name, info, _, section = struct.unpack_from("<IBBH", self._bytes, symbols[1] + 24 * at)
            number = struct.unpack_from("<H", self._bytes, versym[1] + 2 * at)[0] & 0x7FFF
            is_weak = info >> 4 == 2
            if section == 0 and number < 2 and not is_weak:
                made.append(self._text(symbols[3], name))
        return made
