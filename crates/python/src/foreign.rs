//! Checks of the structures that another library of the process gives by Arrow's C interface.
//!
//! The other library is trusted as far as the interface has to trust it: pointers are valid, and
//! buffers are as long as the type, the length and the offset say. Arrow computes places in memory
//! from the numbers of the structures and trusts them, so they are checked here before it does.
//! Libraries also read files without a look at offsets, keys and texts: these are checked, too.

use std::ops::Range;

use arrow::array::{
    Array, ArrayData, AsArray, ByteView, GenericByteViewArray, GenericStringArray,
    MAX_INLINE_VIEW_LEN, OffsetSizeTrait, layout, make_array,
};
use arrow::datatypes::{ByteViewType, DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use millstream::panics::caught;

/// The message of a text that is none.
const NO_TEXT: &str = "a text of an array is not UTF-8";

/// Types within types at most.
const DEPTH_MAX: usize = 64;

/// Rows of an array at most, with those before its offset. Sizes in bits stay far below 2^64.
const ROWS_MAX: i64 = 1 << 48;

/// Converts a structure of another library. Arrow asserts parts of the specification: a violation
/// is an error of the other library, and must not end a call of ours with a panic.
pub(crate) fn converted<T>(convert: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, String> {
    match caught(convert) {
        Ok(made) => made.map_err(|error| error.to_string()),
        Err(panicked) => {
            Err(format!("it is not as Arrow's C interface asks: {}", panicked.message))
        }
    }
}

/// The columns that another library describes.
///
/// # Errors
/// The description is of a single type, or wrong.
pub(crate) fn schema(given: &FFI_ArrowSchema) -> Result<Schema, String> {
    let field = field(given)?;
    match field.data_type() {
        DataType::Struct(columns) => {
            Ok(Schema::new(columns.clone()).with_metadata(field.metadata().clone()))
        }
        other => Err(format!("it gives single values of {other}, and not rows of columns")),
    }
}

/// The type that another library describes.
///
/// # Errors
/// The description is wrong, or of a type that is not known. The text names the column.
pub(crate) fn field(given: &FFI_ArrowSchema) -> Result<Field, String> {
    converted(|| Ok(check_type(given, 0)))??;
    converted(|| Field::try_from(given)).map_err(|error| {
        let fails = |column: &&FFI_ArrowSchema| converted(|| Field::try_from(*column)).is_err();
        let column = converted(|| Ok(given.children().find(fails).and_then(FFI_ArrowSchema::name)));
        match column {
            Ok(Some(name)) => format!("column '{name}': {error}"),
            _ => error,
        }
    })
}

fn check_type(given: &FFI_ArrowSchema, depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("a type is nested deeper than {DEPTH_MAX}"));
    }
    if given.release.is_none() {
        return Err("the schema was released before it was read".into());
    }
    if given.n_children < 0 {
        return Err("a schema has a negative number of children".into());
    }
    given.children().chain(given.dictionary()).try_for_each(|part| check_type(part, depth + 1))
}

/// Checks the numbers of an array of another library against its type.
///
/// # Errors
/// Lengths, buffers or children are not as the type asks.
pub(crate) fn check_array(given: &FFI_ArrowArray, data_type: &DataType) -> Result<(), String> {
    if given.is_released() {
        return Err("the array was released before it was read".into());
    }
    let FFI_ArrowArray { length, offset, n_buffers, n_children, .. } = *given;
    if length < 0 || offset < 0 {
        return Err("an array has a negative length".into());
    }
    if length.saturating_add(offset) > ROWS_MAX {
        return Err("an array is too long".into());
    }
    let form = layout(data_type);
    let buffers =
        form.buffers.len() + usize::from(form.can_contain_null_mask) + usize::from(form.variadic);
    if n_buffers < buffers as i64 || (buffers > 0 && given.buffers.is_null()) {
        return Err("an array has fewer buffers than its type asks for".into());
    }
    if length > 0 && lengths_buffer(given, data_type).is_some_and(|at| given.buffer(at).is_null()) {
        return Err("the buffer of an array's offsets or lengths is null".into());
    }
    let types = child_types(data_type);
    if n_children != types.len() as i64 || (n_children > 0 && given.children.is_null()) {
        return Err(format!("an array of {data_type} has {n_children} children"));
    }
    for (at, child) in types.into_iter().enumerate() {
        check_array(given.child(at), child)?;
    }
    match (data_type, given.dictionary()) {
        (DataType::Dictionary(_, values), Some(dictionary)) => check_array(dictionary, values),
        _ => Ok(()),
    }
}

/// The buffer from which arrow takes the lengths of others, without a look at its place in memory.
fn lengths_buffer(given: &FFI_ArrowArray, data_type: &DataType) -> Option<usize> {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    match data_type {
        Utf8 | Binary | LargeUtf8 | LargeBinary => Some(1),
        // Behind the buffers of NULLs and of views, and those whose lengths it has.
        Utf8View | BinaryView => Some(given.num_buffers() - 1).filter(|at| *at > 2),
        _ => None,
    }
}

fn child_types(data_type: &DataType) -> Vec<&DataType> {
    use DataType::{
        FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded, Struct, Union,
    };
    match data_type {
        List(child)
        | LargeList(child)
        | ListView(child)
        | LargeListView(child)
        | FixedSizeList(child, _)
        | Map(child, _) => vec![child.data_type()],
        Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        Union(fields, _) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        RunEndEncoded(ends, values) => vec![ends.data_type(), values.data_type()],
        _ => vec![],
    }
}

/// Checks the buffers of an array of another library: their lengths, the numbers of values that are
/// NULL, and what says where values lie: offsets, views, keys of dictionaries and ends of runs.
///
/// # Errors
/// The array cannot be used.
pub(crate) fn check_data(data: &ArrayData) -> Result<(), String> {
    converted(|| data.validate())?;
    check_null_counts(data)?;
    check_places(&converted(|| Ok(make_array(data.clone())))?)
}

fn check_null_counts(data: &ArrayData) -> Result<(), String> {
    if let Some(nulls) = data.nulls()
        && nulls.inner().count_set_bits() + nulls.null_count() != nulls.len()
    {
        return Err("an array has another number of NULLs than it says".into());
    }
    data.child_data().iter().try_for_each(check_null_counts)
}

/// Checks where the values of an array lie, and that texts are UTF-8. The first and the last offset
/// are known to be within the values. Slices share their values: each is checked for its own part.
fn check_places(array: &dyn Array) -> Result<(), String> {
    use DataType::{
        Binary, BinaryView, Dictionary, FixedSizeList, LargeBinary, LargeList, LargeUtf8, List,
        Map, RunEndEncoded, Struct, Union, Utf8, Utf8View,
    };
    let part = |values: &dyn Array, range: Range<usize>| {
        check_places(&values.slice(range.start, range.len()))
    };
    match array.data_type() {
        Utf8 => check_texts(array.as_string::<i32>()),
        LargeUtf8 => check_texts(array.as_string::<i64>()),
        Utf8View => check_views(array.as_string_view(), is_text),
        Binary => rising(array.as_binary::<i32>().value_offsets()).map(|_| ()),
        LargeBinary => rising(array.as_binary::<i64>().value_offsets()).map(|_| ()),
        BinaryView => check_views(array.as_binary_view(), |_| true),
        List(_) => part(array.as_list::<i32>().values(), rising(array.as_list::<i32>().offsets())?),
        LargeList(_) => {
            part(array.as_list::<i64>().values(), rising(array.as_list::<i64>().offsets())?)
        }
        Map(..) => part(array.as_map().entries(), rising(array.as_map().offsets())?),
        FixedSizeList(..) => check_places(array.as_fixed_size_list().values()),
        Struct(fields) => {
            fields.iter().zip(array.as_struct().columns()).try_for_each(|(field, column)| {
                check_places(column).map_err(|error| format!("column '{}': {error}", field.name()))
            })
        }
        Dictionary(..) | RunEndEncoded(..) | Union(..) => {
            let data = array.to_data();
            converted(|| data.validate_values())?;
            data.child_data()
                .iter()
                .try_for_each(|child| check_places(&converted(|| Ok(make_array(child.clone())))?))
        }
        _ => Ok(()),
    }
}

/// Checks that no offset is smaller than the one before it. Gives the first and the last.
fn rising<T: OffsetSizeTrait>(offsets: &[T]) -> Result<Range<usize>, String> {
    if !offsets.is_sorted() {
        return Err("an offset of an array is smaller than the one before it".into());
    }
    Ok(offsets[0].as_usize()..offsets[offsets.len() - 1].as_usize())
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || std::str::from_utf8(bytes).is_ok()
}

/// Checks texts. One that is NULL may have any bytes.
fn check_texts<T: OffsetSizeTrait>(array: &GenericStringArray<T>) -> Result<(), String> {
    let (offsets, bytes) = (array.value_offsets(), array.value_data());
    if bytes[rising(offsets)?].is_ascii() {
        return Ok(());
    }
    let texts = offsets.windows(2).map(|ends| &bytes[ends[0].as_usize()..ends[1].as_usize()]);
    let all = (0..).zip(texts).all(|(row, text)| array.is_null(row) || is_text(text));
    all.then_some(()).ok_or_else(|| NO_TEXT.into())
}

/// Checks that the values of views lie in their buffers, and are as they have to be. A view that is
/// NULL may say anything.
fn check_views<T: ByteViewType + ?Sized>(
    array: &GenericByteViewArray<T>,
    is_value: fn(&[u8]) -> bool,
) -> Result<(), String> {
    let buffers = array.data_buffers();
    for (row, view) in array.views().iter().enumerate().filter(|(row, _)| array.is_valid(*row)) {
        let ByteView { length, buffer_index, offset, .. } = ByteView::from(*view);
        let (start, bytes) = (offset as usize, view.to_le_bytes());
        let value = if length <= MAX_INLINE_VIEW_LEN {
            Some(&bytes[4..4 + length as usize])
        } else {
            let buffer = buffers.get(buffer_index as usize);
            buffer.and_then(|buffer| buffer.get(start..start + length as usize))
        };
        let Some(value) = value else {
            return Err(format!("the value of row {row} lies behind the end of its buffer"));
        };
        if !is_value(value) {
            return Err(NO_TEXT.into());
        }
    }
    Ok(())
}
