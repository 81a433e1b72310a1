//! The messages of `pgoutput`, version 1, as the server sends them for each change.

use crate::errors::PgError;
use crate::frames::{FieldCursor, text_of};

/// Columns of a table at most, as Postgres has it.
const COLUMNS_MAX: u16 = 1_664;

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoggedValue {
    Null,
    /// It has not changed, is long, and was not sent.
    Unsent,
    Text(String),
}

/// A table whose rows change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgRelation {
    pub(crate) oid: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
}

/// A row before its change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldRow {
    /// Whether it has the columns of the key alone; the others are NULL then.
    pub(crate) key_only: bool,
    pub(crate) values: Vec<LoggedValue>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogMessage {
    /// A transaction begins, whose commit lies here.
    Begin {
        commit_lsn: u64,
        time_us: i64,
        /// The lower half of its number.
        transaction: u32,
    },
    /// It ends, and the log goes on here.
    Commit {
        end_lsn: u64,
    },
    PgRelation(PgRelation),
    Insert {
        oid: u32,
        new: Vec<LoggedValue>,
    },
    Update {
        oid: u32,
        old: Option<OldRow>,
        new: Vec<LoggedValue>,
    },
    Delete {
        oid: u32,
        old: OldRow,
    },
    Truncate {
        oids: Vec<u32>,
    },
    /// Types, origins and the like.
    Other,
}

impl LogMessage {
    /// Reads a message.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, PgError> {
        let mut cursor = FieldCursor(bytes);
        let message = match cursor.u8()? {
            b'B' => {
                let (commit_lsn, time) = (cursor.u64()?, cursor.u64()?);
                let (time_us, transaction) = (time.cast_signed(), cursor.u32()?);
                Self::Begin { commit_lsn, time_us, transaction }
            }
            b'C' => {
                let (_flags, _commit, end_lsn) = (cursor.u8()?, cursor.u64()?, cursor.u64()?);
                cursor.u64()?;
                Self::Commit { end_lsn }
            }
            b'R' => Self::PgRelation(relation(&mut cursor)?),
            b'I' => {
                let (oid, kind) = (cursor.u32()?, cursor.u8()?);
                expect(kind, b'N')?;
                Self::Insert { oid, new: tuple(&mut cursor)? }
            }
            b'U' => {
                let (oid, mut kind) = (cursor.u32()?, cursor.u8()?);
                let mut old = None;
                if kind != b'N' {
                    old = Some(old_row(kind, &mut cursor)?);
                    kind = cursor.u8()?;
                }
                expect(kind, b'N')?;
                Self::Update { oid, old, new: tuple(&mut cursor)? }
            }
            b'D' => {
                let (oid, kind) = (cursor.u32()?, cursor.u8()?);
                Self::Delete { oid, old: old_row(kind, &mut cursor)? }
            }
            b'T' => {
                let (count, _flags) = (cursor.u32()?, cursor.u8()?);
                if count as usize > cursor.0.len() / 4 {
                    return Err(PgError::Breach("a message is cut off".into()));
                }
                Self::Truncate { oids: (0..count).map(|_| cursor.u32()).collect::<Result<_, _>>()? }
            }
            b'Y' | b'O' | b'M' => return Ok(Self::Other),
            tag => {
                let shown = tag.escape_ascii();
                return Err(PgError::Breach(format!("a change '{shown}' that is not known")));
            }
        };
        match cursor.0 {
            [] => Ok(message),
            _ => Err(PgError::Breach("a change is longer than it says".into())),
        }
    }
}

fn expect(kind: u8, is: u8) -> Result<(), PgError> {
    if kind == is { Ok(()) } else { Err(PgError::Breach("a row where none is due".into())) }
}

fn old_row(kind: u8, cursor: &mut FieldCursor<'_>) -> Result<OldRow, PgError> {
    let key_only = kind == b'K';
    if !key_only {
        expect(kind, b'O')?;
    }
    Ok(OldRow { key_only, values: tuple(cursor)? })
}

fn relation(cursor: &mut FieldCursor<'_>) -> Result<PgRelation, PgError> {
    let (oid, schema, name) = (cursor.u32()?, cursor.text()?, cursor.text()?);
    let (_identity, count) = (cursor.u8()?, columns(cursor)?);
    let column = |_| {
        let (_flags, name) = (cursor.u8()?, cursor.text()?);
        let (_type, _modifier) = (cursor.u32()?, cursor.u32()?);
        Ok(name)
    };
    let columns = (0..count).map(column).collect::<Result<_, PgError>>()?;
    Ok(PgRelation { oid, schema, name, columns })
}

fn columns(cursor: &mut FieldCursor<'_>) -> Result<u16, PgError> {
    let count = cursor.u16()?;
    if count > COLUMNS_MAX {
        return Err(PgError::Breach(format!("a table of {count} columns")));
    }
    Ok(count)
}

fn tuple(cursor: &mut FieldCursor<'_>) -> Result<Vec<LoggedValue>, PgError> {
    let count = columns(cursor)?;
    let value = |_| {
        Ok(match cursor.u8()? {
            b'n' => LoggedValue::Null,
            b'u' => LoggedValue::Unsent,
            b't' => {
                let length = cursor.u32()? as usize;
                LoggedValue::Text(text_of(cursor.bytes(length)?)?)
            }
            _ => return Err(PgError::Breach("a value of an unknown kind".into())),
        })
    };
    (0..count).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> Vec<u8> {
        let mut bytes = b"U\0\0\0\x07K\0\x02t\0\0\0\x011n".to_vec();
        bytes.extend(b"N\0\x02t\0\0\0\x011u");
        bytes
    }

    #[test]
    fn changes_are_read() {
        let mut bytes = b"R\0\0\0\x07public\0t\0d\0\x02".to_vec();
        bytes.extend(b"\x01id\0\0\0\0\x17\xff\xff\xff\xff");
        bytes.extend(b"\0v\0\0\0\0\x19\xff\xff\xff\xff");
        let LogMessage::PgRelation(relation) = LogMessage::of(&bytes).unwrap() else { panic!() };
        assert_eq!((relation.oid, relation.name.as_str()), (7, "t"));
        assert_eq!(relation.columns, ["id", "v"]);
        let LogMessage::Update { oid, old, new } = LogMessage::of(&update()).unwrap() else {
            panic!()
        };
        let old = old.unwrap();
        assert!(oid == 7 && old.key_only && old.values[1] == LoggedValue::Null);
        assert_eq!(new, [LoggedValue::Text("1".into()), LoggedValue::Unsent]);
    }

    #[test]
    fn what_is_cut_off_or_longer_is_refused() {
        let whole = update();
        for end in 0..whole.len() {
            assert!(LogMessage::of(&whole[..end]).is_err(), "{end}");
        }
        assert!(LogMessage::of(&[&whole[..], b"x"].concat()).is_err());
        assert!(LogMessage::of(b"T\xff\xff\xff\xff\0").is_err());
        assert!(LogMessage::of(b"I\0\0\0\x07N\xff\xff").is_err());
    }
}
