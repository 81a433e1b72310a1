//! `ArrowSchema`: a type, with its name and whether it may be NULL.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit, UnionFields, UnionMode};
use arrow::datatypes::{FieldRef, IntervalUnit};

use super::{CDataError, refused};

const DICTIONARY_ORDERED: i64 = 1;
const NULLABLE: i64 = 2;
const MAP_KEYS_SORTED: i64 = 4;

/// Types within types at most.
const DEPTH_MAX: usize = 64;

/// The structure of the specification.
#[repr(C)]
pub(crate) struct CSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut CSchema,
    dictionary: *mut CSchema,
    release: Option<unsafe extern "C" fn(*mut CSchema)>,
    private_data: *mut c_void,
}

// SAFETY: whoever holds the structure owns what it points to, and nothing of it is of a thread.
unsafe impl Send for CSchema {}

/// What an exported schema owns.
struct Owned {
    _texts: [CString; 2],
    _metadata: Option<Vec<u8>>,
    children: Vec<*mut CSchema>,
    dictionary: *mut CSchema,
}

impl CSchema {
    /// One that holds nothing, to be written to by another library.
    pub(crate) fn empty() -> Self {
        Self {
            format: ptr::null(),
            name: ptr::null(),
            metadata: ptr::null(),
            flags: 0,
            n_children: 0,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }

    fn new(field: &Field) -> Result<Self, CDataError> {
        let data_type = field.data_type();
        let mut flags = 0;
        if field.is_nullable() {
            flags |= NULLABLE;
        }
        if matches!(data_type, DataType::Map(_, true)) {
            flags |= MAP_KEYS_SORTED;
        }
        if field.dict_is_ordered() == Some(true) {
            flags |= DICTIONARY_ORDERED;
        }
        let boxed = |field: &Field| Ok::<_, CDataError>(Box::into_raw(Box::new(Self::new(field)?)));
        let children = children_of(data_type)
            .iter()
            .map(|field| boxed(field))
            .collect::<Result<Vec<_>, _>>()?;
        let dictionary = match data_type {
            DataType::Dictionary(_, values) => boxed(&Field::new("", (**values).clone(), true))?,
            _ => ptr::null_mut(),
        };
        let text = |text: &str| {
            CString::new(text).map_err(|_| CDataError(format!("the name {text:?} has a zero byte")))
        };
        let texts = [text(&format_of(data_type)?)?, text(field.name())?];
        let metadata = encoded_metadata(field.metadata());
        let [format, name] = [texts[0].as_ptr(), texts[1].as_ptr()];
        let metadata_at = metadata.as_ref().map_or(ptr::null(), |bytes| bytes.as_ptr().cast());
        let mut owned =
            Box::new(Owned { _texts: texts, _metadata: metadata, children, dictionary });
        Ok(Self {
            format,
            name,
            metadata: metadata_at,
            flags,
            n_children: owned.children.len() as i64,
            children: owned.children.as_mut_ptr(),
            dictionary,
            release: Some(release),
            private_data: Box::into_raw(owned).cast(),
        })
    }

    /// The field that another library describes.
    ///
    /// # Safety
    /// The structure is as the specification says.
    unsafe fn field(&self, depth: usize) -> Result<Field, CDataError> {
        if depth > DEPTH_MAX {
            return refused(format!("a type is nested deeper than {DEPTH_MAX}"));
        }
        if self.release.is_none() {
            return refused("the schema was released before it was read");
        }
        // SAFETY: texts are null or end with a zero byte.
        let (format, name) = unsafe { (text(self.format)?, text(self.name)?) };
        let mut children: Vec<FieldRef> = vec![];
        for at in 0..usize::try_from(self.n_children).unwrap_or(0) {
            // SAFETY: there are so many pointers, each to a schema.
            let child = unsafe { (*self.children.add(at)).as_ref() };
            let Some(child) = child else { return refused("a schema has a child that is null") };
            // SAFETY: as this one.
            children.push(Arc::new(unsafe { child.field(depth + 1)? }));
        }
        let mut data_type =
            type_of(&format, children, self.flags & MAP_KEYS_SORTED != 0).map_err(|error| {
                CDataError(if name.is_empty() {
                    error.0
                } else {
                    format!("column '{name}': {error}")
                })
            })?;
        // SAFETY: null or a schema.
        if let Some(values) = unsafe { self.dictionary.as_ref() } {
            // SAFETY: as this one.
            let values = unsafe { values.field(depth + 1)? };
            data_type =
                DataType::Dictionary(Box::new(data_type), Box::new(values.data_type().clone()));
        }
        // SAFETY: null, or as long as its own numbers say.
        let metadata = unsafe { metadata_at(self.metadata.cast()) };
        let field = Field::new(name, data_type, self.flags & NULLABLE != 0);
        Ok(field.with_metadata(metadata))
    }
}

impl Drop for CSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it was not released: that sets the pointer to null.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release(schema: *mut CSchema) {
    // SAFETY: the caller gives a schema that it owns, made by `CSchema::new`.
    unsafe {
        let Some(schema) = schema.as_mut() else { return };
        let owned = Box::from_raw(schema.private_data.cast::<Owned>());
        owned.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        if !owned.dictionary.is_null() {
            drop(Box::from_raw(owned.dictionary));
        }
        schema.release = None;
    }
}

/// The columns as another library reads them: a structure.
pub(crate) fn exported_schema(schema: &Schema) -> Result<CSchema, CDataError> {
    let columns = Field::new("", DataType::Struct(schema.fields().clone()), false);
    CSchema::new(&columns.with_metadata(schema.metadata().clone()))
}

/// The type as another library reads it.
pub(crate) fn exported_field(field: &Field) -> Result<CSchema, CDataError> {
    CSchema::new(field)
}

/// The columns that another library describes.
///
/// # Safety
/// The structure is as the specification says.
pub(crate) unsafe fn imported_schema(schema: &CSchema) -> Result<Schema, CDataError> {
    // SAFETY: the caller's word.
    let field = unsafe { schema.field(0)? };
    match field.data_type() {
        DataType::Struct(fields) => {
            Ok(Schema::new(fields.clone()).with_metadata(field.metadata().clone()))
        }
        other => refused(format!("it gives single values of {other}, and not rows of columns")),
    }
}

/// The type that another library describes.
///
/// # Safety
/// The structure is as the specification says.
pub(crate) unsafe fn imported_field(schema: &CSchema) -> Result<Field, CDataError> {
    // SAFETY: the caller's word.
    unsafe { schema.field(0) }
}

/// # Safety
/// Null, or a text that ends with a zero byte.
unsafe fn text(at: *const c_char) -> Result<String, CDataError> {
    if at.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller's word.
    let text = unsafe { CStr::from_ptr(at) }.to_str();
    text.map(str::to_owned).map_err(|_| CDataError("a name is no UTF-8".into()))
}

fn encoded_metadata(metadata: &HashMap<String, String>) -> Option<Vec<u8>> {
    if metadata.is_empty() {
        return None;
    }
    let mut bytes = (metadata.len() as i32).to_ne_bytes().to_vec();
    for text in metadata.iter().flat_map(|(key, value)| [key, value]) {
        bytes.extend((text.len() as i32).to_ne_bytes());
        bytes.extend(text.as_bytes());
    }
    Some(bytes)
}

/// # Safety
/// Null, or encoded as the specification says.
unsafe fn metadata_at(mut at: *const u8) -> HashMap<String, String> {
    if at.is_null() {
        return HashMap::new();
    }
    let mut take = |count: usize| {
        // SAFETY: the bytes that the numbers before announce are there.
        let bytes = unsafe { std::slice::from_raw_parts(at, count) };
        at = at.wrapping_add(count);
        bytes
    };
    let number = |bytes: &[u8]| {
        let number = bytes.try_into().map(i32::from_ne_bytes).unwrap_or(0);
        usize::try_from(number).unwrap_or(0)
    };
    let pairs = number(take(4));
    let mut text = || {
        let length = number(take(4));
        String::from_utf8_lossy(take(length)).into_owned()
    };
    (0..pairs).map(|_| (text(), text())).collect()
}

fn children_of(data_type: &DataType) -> Vec<FieldRef> {
    use DataType::{
        FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded, Struct, Union,
    };
    match data_type {
        List(child)
        | LargeList(child)
        | ListView(child)
        | LargeListView(child)
        | FixedSizeList(child, _)
        | Map(child, _) => vec![Arc::clone(child)],
        Struct(fields) => fields.iter().cloned().collect(),
        Union(fields, _) => fields.iter().map(|(_, field)| Arc::clone(field)).collect(),
        RunEndEncoded(ends, values) => vec![Arc::clone(ends), Arc::clone(values)],
        _ => vec![],
    }
}

/// Types without parameters, and their formats.
const PLAIN: [(&str, DataType); 36] = [
    ("n", DataType::Null),
    ("b", DataType::Boolean),
    ("c", DataType::Int8),
    ("C", DataType::UInt8),
    ("s", DataType::Int16),
    ("S", DataType::UInt16),
    ("i", DataType::Int32),
    ("I", DataType::UInt32),
    ("l", DataType::Int64),
    ("L", DataType::UInt64),
    ("e", DataType::Float16),
    ("f", DataType::Float32),
    ("g", DataType::Float64),
    ("z", DataType::Binary),
    ("Z", DataType::LargeBinary),
    ("vz", DataType::BinaryView),
    ("u", DataType::Utf8),
    ("U", DataType::LargeUtf8),
    ("vu", DataType::Utf8View),
    ("tdD", DataType::Date32),
    ("tdm", DataType::Date64),
    ("tts", DataType::Time32(TimeUnit::Second)),
    ("ttm", DataType::Time32(TimeUnit::Millisecond)),
    ("ttu", DataType::Time64(TimeUnit::Microsecond)),
    ("ttn", DataType::Time64(TimeUnit::Nanosecond)),
    ("tDs", DataType::Duration(TimeUnit::Second)),
    ("tDm", DataType::Duration(TimeUnit::Millisecond)),
    ("tDu", DataType::Duration(TimeUnit::Microsecond)),
    ("tDn", DataType::Duration(TimeUnit::Nanosecond)),
    ("tiM", DataType::Interval(IntervalUnit::YearMonth)),
    ("tiD", DataType::Interval(IntervalUnit::DayTime)),
    ("tin", DataType::Interval(IntervalUnit::MonthDayNano)),
    ("tss:", DataType::Timestamp(TimeUnit::Second, None)),
    ("tsm:", DataType::Timestamp(TimeUnit::Millisecond, None)),
    ("tsu:", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("tsn:", DataType::Timestamp(TimeUnit::Nanosecond, None)),
];

fn format_of(data_type: &DataType) -> Result<String, CDataError> {
    if let Some((format, _)) = PLAIN.iter().find(|(_, plain)| plain == data_type) {
        return Ok((*format).to_owned());
    }
    Ok(match data_type {
        DataType::Timestamp(unit, Some(zone)) => {
            let unit = match unit {
                TimeUnit::Second => 's',
                TimeUnit::Millisecond => 'm',
                TimeUnit::Microsecond => 'u',
                TimeUnit::Nanosecond => 'n',
            };
            format!("ts{unit}:{zone}")
        }
        DataType::Decimal32(precision, scale) => format!("d:{precision},{scale},32"),
        DataType::Decimal64(precision, scale) => format!("d:{precision},{scale},64"),
        DataType::Decimal128(precision, scale) => format!("d:{precision},{scale}"),
        DataType::Decimal256(precision, scale) => format!("d:{precision},{scale},256"),
        DataType::FixedSizeBinary(bytes) => format!("w:{bytes}"),
        DataType::List(_) => "+l".into(),
        DataType::LargeList(_) => "+L".into(),
        DataType::ListView(_) => "+vl".into(),
        DataType::LargeListView(_) => "+vL".into(),
        DataType::FixedSizeList(_, count) => format!("+w:{count}"),
        DataType::Struct(_) => "+s".into(),
        DataType::Map(..) => "+m".into(),
        DataType::RunEndEncoded(..) => "+r".into(),
        DataType::Union(fields, mode) => {
            let ids: Vec<_> = fields.iter().map(|(id, _)| id.to_string()).collect();
            let mode = if *mode == UnionMode::Dense { 'd' } else { 's' };
            format!("+u{mode}:{}", ids.join(","))
        }
        DataType::Dictionary(keys, _) => format_of(keys)?,
        other => return refused(format!("the type {other} has no form in Arrow's C interface")),
    })
}

fn type_of(format: &str, children: Vec<FieldRef>, sorted: bool) -> Result<DataType, CDataError> {
    if let Some((_, plain)) = PLAIN.iter().find(|(known, _)| *known == format) {
        return Ok(plain.clone());
    }
    let unknown = || CDataError(format!("the type with the format '{format}' is not known"));
    let only = |children: Vec<FieldRef>| match <[FieldRef; 1]>::try_from(children) {
        Ok([child]) => Ok(child),
        Err(_) => refused(format!("the type '{format}' does not have one child")),
    };
    match format {
        "+l" => return Ok(DataType::List(only(children)?)),
        "+L" => return Ok(DataType::LargeList(only(children)?)),
        "+vl" => return Ok(DataType::ListView(only(children)?)),
        "+vL" => return Ok(DataType::LargeListView(only(children)?)),
        "+m" => return Ok(DataType::Map(only(children)?, sorted)),
        "+s" => return Ok(DataType::Struct(Fields::from(children))),
        "+r" => {
            return match <[FieldRef; 2]>::try_from(children) {
                Ok([ends, values]) => Ok(DataType::RunEndEncoded(ends, values)),
                Err(_) => refused("a run-end encoded type does not have two children"),
            };
        }
        _ => {}
    }
    let (kind, parameters) = format.split_once(':').ok_or_else(unknown)?;
    let number = |text: &str| text.parse::<i32>().map_err(|_| unknown());
    let zone = |unit| Ok(DataType::Timestamp(unit, Some(parameters.into())));
    match kind {
        "tss" => zone(TimeUnit::Second),
        "tsm" => zone(TimeUnit::Millisecond),
        "tsu" => zone(TimeUnit::Microsecond),
        "tsn" => zone(TimeUnit::Nanosecond),
        "w" => Ok(DataType::FixedSizeBinary(number(parameters)?)),
        "+w" => Ok(DataType::FixedSizeList(only(children)?, number(parameters)?)),
        "d" => decimal_of(parameters).ok_or_else(unknown),
        "+ud" | "+us" => {
            let ids = parameters.split(',').map(|id| id.parse::<i8>().map_err(|_| unknown()));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            let fields = UnionFields::try_new(ids, children)?;
            let mode = if kind == "+ud" { UnionMode::Dense } else { UnionMode::Sparse };
            Ok(DataType::Union(fields, mode))
        }
        _ => Err(unknown()),
    }
}

fn decimal_of(parameters: &str) -> Option<DataType> {
    let mut parts = parameters.split(',');
    let precision = parts.next()?.parse().ok()?;
    let scale = parts.next()?.parse().ok()?;
    match parts.next() {
        None | Some("128") => Some(DataType::Decimal128(precision, scale)),
        Some("32") => Some(DataType::Decimal32(precision, scale)),
        Some("64") => Some(DataType::Decimal64(precision, scale)),
        Some("256") => Some(DataType::Decimal256(precision, scale)),
        Some(_) => None,
    }
}
