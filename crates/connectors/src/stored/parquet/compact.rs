//! The compact protocol of Thrift, in which footers and headers of pages are written: just so much
//! of it that they can be looked at before the library reads them.

/// Structures within one another at most.
const DEPTH_MAX: u32 = 32;

/// Kinds of values.
pub(super) mod kind {
    pub(in super::super) const TRUE: u8 = 1;
    pub(in super::super) const FALSE: u8 = 2;
    pub(in super::super) const I32: u8 = 5;
    pub(in super::super) const LIST: u8 = 9;
    pub(in super::super) const STRUCT: u8 = 12;
}

/// The fault of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// They end too early.
    Cut,
    /// They are no such structure.
    Unreadable,
}

/// Bytes that are being read.
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes have been read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8, Damage> {
        let byte = self.bytes.get(self.at).ok_or(Damage::Cut)?;
        self.at += 1;
        Ok(*byte)
    }

    fn pass(&mut self, bytes: u64) -> Result<(), Damage> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return Err(Damage::Cut);
        }
        self.at += bytes as usize;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damage::Unreadable)
    }

    fn zigzag(&mut self) -> Result<i64, Damage> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number of the kind I32.
    pub(super) fn i32(&mut self) -> Result<i32, Damage> {
        i32::try_from(self.zigzag()?).map_err(|_| Damage::Unreadable)
    }

    /// Number and kind of the next field of a structure, `last` being that of the one before.
    pub(super) fn field(&mut self, last: i64) -> Result<Option<(i64, u8)>, Damage> {
        let head = self.byte()?;
        let kind = head & 0xf;
        if kind == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => self.zigzag()?,
            more => last + i64::from(more),
        };
        Ok(Some((id, kind)))
    }

    /// The kind of the elements of a list, and how many there are: no more than bytes are left.
    pub(super) fn list(&mut self) -> Result<(u8, u64), Damage> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            few => u64::from(few),
        };
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(Damage::Cut);
        }
        Ok((head & 0xf, count))
    }

    /// Goes through the fields of a structure; `take` reads a value or leaves it.
    pub(super) fn fields(
        &mut self,
        mut take: impl FnMut(&mut Self, i64, u8) -> Result<bool, Damage>,
    ) -> Result<(), Damage> {
        let mut last = 0;
        while let Some((id, kind)) = self.field(last)? {
            if !take(self, id, kind)? {
                self.skip(kind, 0)?;
            }
            last = id;
        }
        Ok(())
    }

    /// Goes through the structures of a list, which are counted from 0.
    pub(super) fn structures(
        &mut self,
        mut take: impl FnMut(&mut Self, usize) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let (of, count) = self.list()?;
        if of != kind::STRUCT {
            return Err(Damage::Unreadable);
        }
        (0..count as usize).try_for_each(|index| take(self, index))
    }

    /// Passes a value.
    pub(super) fn skip(&mut self, kind: u8, depth: u32) -> Result<(), Damage> {
        if depth > DEPTH_MAX {
            return Err(Damage::Unreadable);
        }
        match kind {
            kind::TRUE | kind::FALSE => Ok(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let bytes = self.varint()?;
                self.pass(bytes)
            }
            kind::LIST | 10 => {
                let (of, count) = self.list()?;
                (0..count).try_for_each(|_| self.element(of, depth))
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 0xf, depth)
                })
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some((id, kind)) = self.field(last)? {
                    self.skip(kind, depth + 1)?;
                    last = id;
                }
                Ok(())
            }
            13 => self.pass(16),
            _ => Err(Damage::Unreadable),
        }
    }

    /// Passes an element of a list: a truth value takes a byte there.
    fn element(&mut self, kind: u8, depth: u32) -> Result<(), Damage> {
        match kind {
            kind::TRUE | kind::FALSE => self.pass(1),
            kind => self.skip(kind, depth + 1),
        }
    }
}
