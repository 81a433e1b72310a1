//! Little-endian fields of messages and manifests, read as of a stranger.

use crate::error::PoolError;

/// Bytes of a name or a reason at most.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// Appends fields.
#[derive(Default)]
pub(crate) struct FieldWriter(pub(crate) Vec<u8>);

impl FieldWriter {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    /// A text, cut between characters if it is too long.
    pub(crate) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    pub(crate) fn list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| one(self, item));
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, one: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            one(self, value);
        }
    }
}

/// Takes fields off the front.
pub(crate) struct FieldReader<'a> {
    bytes: &'a [u8],
    /// The name of what is read, for errors.
    what: &'static str,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    pub(crate) fn malformed(&self) -> PoolError {
        PoolError::Malformed { what: self.what }
    }

    /// Whether all has been read; more is an error.
    pub(crate) fn end(&self) -> Result<(), PoolError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], PoolError> {
        let (head, tail) = self.bytes.split_at_checked(count).ok_or(self.malformed())?;
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PoolError> {
        let malformed = self.malformed();
        self.take(N)?.try_into().map_err(|_| malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, PoolError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, PoolError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, PoolError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, PoolError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, PoolError> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, PoolError> {
        self.array().map(u128::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], PoolError> {
        let count = self.u32()? as usize;
        self.take(count)
    }

    pub(crate) fn text(&mut self) -> Result<String, PoolError> {
        let malformed = self.malformed();
        let bytes = self.bytes()?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(malformed);
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| malformed)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, PoolError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    /// A list of at most `most` items. Memory is taken as items are read, not as they are promised.
    pub(crate) fn list<T>(
        &mut self,
        most: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, PoolError>,
    ) -> Result<Vec<T>, PoolError> {
        let count = self.u32()? as usize;
        if count > most {
            return Err(self.malformed());
        }
        (0..count).map(|_| one(self)).collect()
    }

    pub(crate) fn option<T>(
        &mut self,
        one: impl FnOnce(&mut Self) -> Result<T, PoolError>,
    ) -> Result<Option<T>, PoolError> {
        if self.flag()? { one(self).map(Some) } else { Ok(None) }
    }
}
