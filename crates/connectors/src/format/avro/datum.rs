//! Values of Avro as bytes say them, into columns.
//!
//! Nothing is believed: a length is one of bytes that are there, and values that take no bytes are
//! counted.

use super::schema::{AvroSchema, AvroType, DEPTH_MAX, only};
use crate::format::cells::{CellValues, ValueCells};

/// Values without bytes at most, such as NULLs of an array, in a message or a block of a file.
const EMPTY_VALUES_MAX: usize = 1 << 16;

/// How far values were read.
pub(super) struct Passed {
    bytes: usize,
    empty_left: usize,
}

impl Default for Passed {
    fn default() -> Self {
        Self { bytes: 0, empty_left: EMPTY_VALUES_MAX }
    }
}

/// Bytes of values that are being read.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Values without bytes that may follow.
    empty_left: usize,
    /// Whether there were fewer bytes than were asked for.
    ran_out: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, empty_left: EMPTY_VALUES_MAX, ran_out: false }
    }

    /// The same where a part of the values was read before, by the cursor `before`.
    pub(super) fn behind(bytes: &'a [u8], before: &Passed) -> Self {
        Self { bytes: &bytes[before.bytes..], empty_left: before.empty_left, ran_out: false }
    }

    /// Whether more bytes might have helped.
    pub(super) fn ran_out(&self) -> bool {
        self.ran_out
    }

    /// The number of bytes that were decoded of `bytes`, of which these are left.
    pub(super) fn passed(&self, bytes: &[u8]) -> Passed {
        Passed { bytes: bytes.len() - self.bytes.len(), empty_left: self.empty_left }
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn long(&mut self) -> Result<i64, String> {
        let mut value = 0_u64;
        for (at, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                if at == 9 && *byte > 1 {
                    break;
                }
                self.bytes = &self.bytes[at + 1..];
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        if self.bytes.len() < 10 {
            return Err(self.cut());
        }
        Err("a number has more than 64 bits".into())
    }

    fn int(&mut self) -> Result<i32, String> {
        let value = self.long()?;
        i32::try_from(value).map_err(|_| format!("{value} is no int"))
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let Some((taken, rest)) = self.bytes.split_at_checked(bytes) else {
            return Err(self.cut());
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let Some((taken, rest)) = self.bytes.split_first_chunk::<N>() else {
            return Err(self.cut());
        };
        self.bytes = rest;
        Ok(*taken)
    }

    fn cut(&mut self) -> String {
        self.ran_out = true;
        "it ends within a value".into()
    }

    /// Bytes behind their length.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], String> {
        let length = self.long()?;
        self.take(usize::try_from(length).map_err(|_| format!("a length is {length}"))?)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(format!("{other} is no boolean")),
        }
    }

    fn text(&mut self) -> Result<&'a str, String> {
        std::str::from_utf8(self.counted()?).map_err(|_| "a string is not UTF-8".into())
    }

    fn decimal(&mut self, precision: u8, fixed: Option<usize>) -> Result<i128, String> {
        let bytes = match fixed {
            Some(bytes) => self.take(bytes)?,
            None => self.counted()?,
        };
        decimal(bytes, precision)
    }

    /// Reads a value, and counts it if it has no bytes.
    pub(super) fn value<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let before = self.left();
        let value = read(self)?;
        if self.left() == before {
            let left = self.empty_left.checked_sub(1);
            self.empty_left = left.ok_or_else(|| {
                format!("it has more than {EMPTY_VALUES_MAX} values without bytes")
            })?;
        }
        Ok(value)
    }

    /// Reads the values of an array or a map.
    pub(super) fn items(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                // Its bytes, for those who pass over it.
                self.long()?;
            }
            for _ in 0..count.unsigned_abs() {
                self.value(&mut read)?;
            }
        }
    }

    /// The type of a union that follows.
    fn branch<'t>(&mut self, types: &'t [AvroType]) -> Result<&'t AvroType, String> {
        let number = self.long()?;
        let of = usize::try_from(number).ok().and_then(|number| types.get(number));
        of.ok_or_else(|| format!("a union of {} types has none of number {number}", types.len()))
    }

    fn symbol<'t>(&mut self, symbols: &'t [String]) -> Result<&'t str, String> {
        let number = self.int()?;
        let symbol = usize::try_from(number).ok().and_then(|number| symbols.get(number));
        let symbol = symbol.map(String::as_str);
        symbol.ok_or_else(|| format!("an enum has no symbol of number {number}"))
    }
}

/// Reads the values of types of one schema.
#[derive(Clone, Copy)]
pub(super) struct Reading<'s>(pub(super) &'s AvroSchema);

impl Reading<'_> {
    /// Reads a value of the type into a column of [its type](AvroSchema::data_type).
    pub(super) fn read(
        self,
        of: &AvroType,
        from: &mut Cursor<'_>,
        to: &mut ValueCells,
    ) -> Result<(), String> {
        if let AvroType::Union(types) = of {
            return match from.branch(types)? {
                AvroType::Null => to.push_null(),
                of => self.read(of, from, to),
            };
        }
        if let AvroType::Null = of {
            return to.push_null();
        }
        match (of, &mut to.values) {
            (AvroType::Boolean, CellValues::Bools(to)) => to.append(from.boolean()?),
            (AvroType::Int | AvroType::Date | AvroType::TimeMillis, CellValues::Ints(to)) => {
                to.push(from.int()?);
            }
            (
                AvroType::Long | AvroType::TimeMicros | AvroType::Timestamp(_),
                CellValues::Longs(to),
            ) => to.push(from.long()?),
            (AvroType::Float, CellValues::Floats(to)) => {
                to.push(f32::from_le_bytes(from.array()?));
            }
            (AvroType::Double, CellValues::Doubles(to)) => {
                to.push(f64::from_le_bytes(from.array()?));
            }
            (AvroType::Bytes, CellValues::Texts(to)) => to.push(from.counted()?)?,
            (AvroType::Fixed(bytes), CellValues::Texts(to)) => to.push(from.take(*bytes)?)?,
            (AvroType::String, CellValues::Texts(to)) => to.push(from.text()?.as_bytes())?,
            (AvroType::Enum(symbols), CellValues::Texts(to)) => {
                to.push(from.symbol(symbols)?.as_bytes())?;
            }
            (AvroType::Decimal { precision, fixed, .. }, CellValues::Decimals(to)) => {
                to.push(from.decimal(*precision, *fixed)?);
            }
            (AvroType::Array(of), CellValues::Lists(runs, items)) => {
                from.items(|from| self.read(of, from, items))?;
                runs.push(items.len())?;
            }
            (AvroType::Map(of), CellValues::Maps(runs, entries)) => {
                let [keys, values] = &mut **entries;
                from.items(|from| {
                    let CellValues::Texts(to) = &mut keys.values else { return Err(bug()) };
                    to.push(from.text()?.as_bytes())?;
                    keys.pushed();
                    self.read(of, from, values)
                })?;
                runs.push(values.len())?;
            }
            (AvroType::Record(record), CellValues::Rows(columns)) => {
                let fields = &self.0.records[*record].fields;
                for ((_, of), to) in fields.iter().zip(columns) {
                    self.read(of, from, to)?;
                }
            }
            _ => return Err(bug()),
        }
        to.pushed();
        Ok(())
    }

    /// Passes over a value.
    pub(super) fn pass(
        self,
        of: &AvroType,
        from: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("it has more than {DEPTH_MAX} values within each other"));
        }
        match of {
            AvroType::Null => Ok(()),
            AvroType::Boolean => from.boolean().map(drop),
            AvroType::Int | AvroType::Date | AvroType::TimeMillis => from.int().map(drop),
            AvroType::Long | AvroType::TimeMicros | AvroType::Timestamp(_) => from.long().map(drop),
            AvroType::Float => from.take(4).map(drop),
            AvroType::Double => from.take(8).map(drop),
            AvroType::Bytes => from.counted().map(drop),
            AvroType::String => from.text().map(drop),
            AvroType::Fixed(bytes) => from.take(*bytes).map(drop),
            AvroType::Decimal { precision, fixed, .. } => {
                from.decimal(*precision, *fixed).map(drop)
            }
            AvroType::Enum(symbols) => from.symbol(symbols).map(drop),
            AvroType::Array(of) => from.items(|from| self.pass(of, from, depth + 1)),
            AvroType::Map(of) => from.items(|from| {
                from.text()?;
                self.pass(of, from, depth + 1)
            }),
            AvroType::Union(types) => {
                let of = from.branch(types)?;
                self.pass(of, from, depth + 1)
            }
            // Records of records may hold more values than can be counted, none of which has bytes.
            AvroType::Record(record) if self.0.records[*record].is_empty => Ok(()),
            AvroType::Record(record) => {
                let fields = &self.0.records[*record].fields;
                fields.iter().try_for_each(|(_, of)| self.pass(of, from, depth + 1))
            }
        }
    }
}

/// The type of the column was made from that of the value.
fn bug() -> String {
    "its column has another type: this is a bug, please report it".into()
}

/// A number of bytes, the most significant first.
fn decimal(bytes: &[u8], precision: u8) -> Result<i128, String> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let mut wide = [fill; 16];
    let skipped = bytes.len().saturating_sub(wide.len());
    let (filling, own) = bytes.split_at(skipped);
    wide[16 - own.len()..].copy_from_slice(own);
    let value = i128::from_be_bytes(wide);
    let fits = filling.iter().all(|byte| *byte == fill) && (value < 0) == negative;
    let most = 10_u128.pow(u32::from(precision));
    if fits && value.unsigned_abs() < most {
        return Ok(value);
    }
    Err(format!("a decimal has more than {precision} digits"))
}

/// Whether NULL may stand for a value of the type.
pub(super) fn may_be_null(of: &AvroType) -> bool {
    match of {
        AvroType::Null => true,
        AvroType::Union(types) => types.contains(&AvroType::Null) && only(types).is_some(),
        _ => false,
    }
}
