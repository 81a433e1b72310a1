//! `ArrowArray`: the buffers of an array.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use arrow::array::{ArrayData, layout};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, UnionMode};

use super::{CDataError, refused};

/// Arrays within arrays at most.
const DEPTH_MAX: usize = 64;

/// The structure of the specification.
#[repr(C)]
pub(crate) struct CArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut CArray,
    dictionary: *mut CArray,
    release: Option<unsafe extern "C" fn(*mut CArray)>,
    private_data: *mut c_void,
}

// SAFETY: whoever holds the structure owns what it points to; the specification lets it be released
// on any thread, and what is shared between threads is only read.
unsafe impl Send for CArray {}
// SAFETY: as above.
unsafe impl Sync for CArray {}

/// What an exported array owns.
struct Owned {
    _buffers: Vec<Option<Buffer>>,
    pointers: Vec<*const c_void>,
    children: Vec<*mut CArray>,
    dictionary: *mut CArray,
}

impl CArray {
    /// One that holds nothing, to be written to by another library.
    pub(crate) fn empty() -> Self {
        Self {
            length: 0,
            null_count: 0,
            offset: 0,
            n_buffers: 0,
            n_children: 0,
            buffers: ptr::null_mut(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: None,
            private_data: ptr::null_mut(),
        }
    }

    /// Whether it is one that says that no more come.
    pub(crate) fn is_released(&self) -> bool {
        self.release.is_none()
    }
}

impl Drop for CArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it was not released: that sets the pointer to null.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release(array: *mut CArray) {
    // SAFETY: the caller gives an array that it owns, made by `exported_array`.
    unsafe {
        let Some(array) = array.as_mut() else { return };
        let owned = Box::from_raw(array.private_data.cast::<Owned>());
        owned.children.iter().for_each(|child| drop(Box::from_raw(*child)));
        if !owned.dictionary.is_null() {
            drop(Box::from_raw(owned.dictionary));
        }
        array.release = None;
    }
}

/// The bits of validity from the array's own offset on: the interface has one offset for all
/// buffers.
fn validity(data: &ArrayData) -> Option<Buffer> {
    let nulls = data.nulls()?;
    if nulls.offset() == data.offset() {
        return Some(nulls.buffer().clone());
    }
    if data.offset() == 0 {
        return Some(nulls.inner().sliced());
    }
    let bits = std::iter::repeat_n(false, data.offset()).chain(nulls.iter());
    Some(BooleanBuffer::from_iter(bits).into_inner())
}

/// The array as another library reads it; its buffers live until that releases it.
pub(crate) fn exported_array(data: &ArrayData) -> CArray {
    let form = layout(data.data_type());
    let mut buffers: Vec<Option<Buffer>> = vec![];
    if form.can_contain_null_mask {
        buffers.push(validity(data));
    }
    buffers.extend(data.buffers().iter().cloned().map(Some));
    if form.variadic {
        // The lengths of the buffers behind the views.
        let lengths = data.buffers().iter().skip(1).map(|buffer| buffer.len() as i64);
        buffers.push(Some(Buffer::from_vec(lengths.collect::<Vec<i64>>())));
    }
    let pointer = |buffer: &Option<Buffer>| {
        buffer.as_ref().map_or(ptr::null(), |buffer| buffer.as_ptr().cast::<c_void>())
    };
    let pointers = buffers.iter().map(pointer).collect();
    let boxed = |data: &ArrayData| Box::into_raw(Box::new(exported_array(data)));
    let is_dictionary = matches!(data.data_type(), DataType::Dictionary(..));
    let (children, dictionary) = match data.child_data() {
        [values] if is_dictionary => (vec![], boxed(values)),
        children => (children.iter().map(boxed).collect(), ptr::null_mut()),
    };
    let null_count =
        if *data.data_type() == DataType::Null { data.len() } else { data.null_count() };
    let mut owned = Box::new(Owned { _buffers: buffers, pointers, children, dictionary });
    CArray {
        length: data.len() as i64,
        null_count: null_count as i64,
        offset: data.offset() as i64,
        n_buffers: owned.pointers.len() as i64,
        n_children: owned.children.len() as i64,
        buffers: owned.pointers.as_mut_ptr(),
        children: owned.children.as_mut_ptr(),
        dictionary,
        release: Some(release),
        private_data: Box::into_raw(owned).cast(),
    }
}

/// The array that another library gave. Its buffers are that library's until the last reference is
/// dropped.
///
/// # Safety
/// The structure is as the specification says, for an array of this type.
pub(crate) unsafe fn imported_array(
    array: CArray,
    data_type: &DataType,
) -> Result<ArrayData, CDataError> {
    let owner = Arc::new(array);
    // SAFETY: the caller's word.
    let mut data = unsafe { part(&owner, &owner, data_type, 0)? };
    // Buffers of other libraries need not be aligned.
    data.align_buffers();
    data.validate()?;
    Ok(data)
}

/// # Safety
/// `array` is a part of `owner`, of this type.
unsafe fn part(
    owner: &Arc<CArray>,
    array: &CArray,
    data_type: &DataType,
    depth: usize,
) -> Result<ArrayData, CDataError> {
    if depth > DEPTH_MAX {
        return refused(format!("an array is nested deeper than {DEPTH_MAX}"));
    }
    let size = |number: i64| {
        usize::try_from(number).map_err(|_| CDataError("an array has a negative length".into()))
    };
    let (length, offset) = (size(array.length)?, size(array.offset)?);
    let Some(end) = length.checked_add(offset) else { return refused("an array is too long") };
    // SAFETY: the caller's word.
    let children = unsafe { children(owner, array, data_type, depth)? };
    let builder = ArrayData::builder(data_type.clone()).len(length).offset(offset);
    let form = layout(data_type);
    let buffers = Pieces { owner, array };
    let mut nulls = None;
    if form.can_contain_null_mask && array.null_count != 0 {
        // SAFETY: the first buffer has a bit for each row.
        let bits = unsafe { buffers.get(0, end.div_ceil(8))? };
        nulls = bits.map(|bits| NullBuffer::new(BooleanBuffer::new(bits, offset, length)));
    }
    // SAFETY: the caller's word.
    let buffers = unsafe { buffers.of(data_type, end, usize::from(form.can_contain_null_mask))? };
    let builder = builder.nulls(nulls).buffers(buffers).child_data(children);
    // SAFETY: buffers are as long as the type asks; the whole is validated by the caller.
    Ok(unsafe { builder.build_unchecked() })
}

/// # Safety
/// As [`part`].
unsafe fn children(
    owner: &Arc<CArray>,
    array: &CArray,
    data_type: &DataType,
    depth: usize,
) -> Result<Vec<ArrayData>, CDataError> {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded,
        Struct, Union,
    };
    if let Dictionary(_, values) = data_type {
        // SAFETY: null or an array.
        let Some(dictionary) = (unsafe { array.dictionary.as_ref() }) else {
            return refused("an array of dictionary keys has no dictionary");
        };
        // SAFETY: its values have this type.
        return Ok(vec![unsafe { part(owner, dictionary, values, depth + 1)? }]);
    }
    let types: Vec<&DataType> = match data_type {
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
    };
    if array.n_children != types.len() as i64 {
        let count = array.n_children;
        return refused(format!("an array of {data_type} has {count} children"));
    }
    let child = |(at, data_type): (usize, &&DataType)| {
        // SAFETY: there are so many pointers, each to an array.
        let child = unsafe { (*array.children.add(at)).as_ref() };
        let Some(child) = child else { return refused("an array has a child that is null") };
        // SAFETY: the child has this type.
        unsafe { part(owner, child, data_type, depth + 1) }
    };
    types.iter().enumerate().map(child).collect()
}

/// The buffers of an array of another library.
struct Pieces<'a> {
    owner: &'a Arc<CArray>,
    array: &'a CArray,
}

impl Pieces<'_> {
    /// The bytes of a buffer; `None` where there is none.
    ///
    /// # Safety
    /// If it is there, it has so many bytes.
    unsafe fn get(&self, at: usize, bytes: usize) -> Result<Option<Buffer>, CDataError> {
        if at as i64 >= self.array.n_buffers || self.array.buffers.is_null() {
            return refused("an array has fewer buffers than its type asks for");
        }
        // SAFETY: there are so many pointers.
        let pointer = unsafe { *self.array.buffers.add(at) };
        let Some(pointer) = NonNull::new(pointer.cast::<u8>().cast_mut()) else { return Ok(None) };
        if bytes == 0 {
            return Ok(Some(Buffer::from_vec(Vec::<u64>::new())));
        }
        let owner: Arc<dyn arrow::alloc::Allocation> = Arc::clone(self.owner) as _;
        // SAFETY: the caller's word; the owner keeps it.
        Ok(Some(unsafe { Buffer::from_custom_allocation(pointer, bytes, owner) }))
    }

    /// As [`get`](Self::get), of a buffer that has to be there unless it is empty.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    unsafe fn needed(&self, at: usize, bytes: usize) -> Result<Buffer, CDataError> {
        // SAFETY: the caller's word.
        match unsafe { self.get(at, bytes)? } {
            Some(buffer) => Ok(buffer),
            None if bytes == 0 => Ok(Buffer::from_vec(Vec::<u64>::new())),
            None => refused("a buffer of an array is null"),
        }
    }

    /// The buffers behind the validity of an array, for `rows` rows from the buffers' beginning.
    ///
    /// # Safety
    /// The array is of this type.
    unsafe fn of(
        &self,
        data_type: &DataType,
        rows: usize,
        first: usize,
    ) -> Result<Vec<Buffer>, CDataError> {
        use DataType::{
            Binary, BinaryView, Boolean, Dictionary, FixedSizeBinary, LargeBinary, LargeList,
            LargeListView, LargeUtf8, List, ListView, Map, Union, Utf8, Utf8View,
        };
        // SAFETY: each asks for the bytes that the specification gives to its type.
        unsafe {
            let fixed = |at, width: usize| match rows.checked_mul(width) {
                Some(bytes) => self.needed(at, bytes),
                None => refused("an array is too long"),
            };
            Ok(match data_type {
                Boolean => vec![self.needed(first, rows.div_ceil(8))?],
                Utf8 | Binary => self.texts::<i32>(first, rows)?,
                LargeUtf8 | LargeBinary => self.texts::<i64>(first, rows)?,
                List(_) | Map(..) => vec![self.offsets::<i32>(first, rows)?],
                LargeList(_) => vec![self.offsets::<i64>(first, rows)?],
                ListView(_) => vec![fixed(first, 4)?, fixed(first + 1, 4)?],
                LargeListView(_) => vec![fixed(first, 8)?, fixed(first + 1, 8)?],
                Utf8View | BinaryView => self.views(first, rows)?,
                FixedSizeBinary(width) => vec![fixed(first, usize::try_from(*width).unwrap_or(0))?],
                Union(_, UnionMode::Sparse) => vec![fixed(first, 1)?],
                Union(_, UnionMode::Dense) => vec![fixed(first, 1)?, fixed(first + 1, 4)?],
                Dictionary(keys, _) => vec![fixed(first, keys.primitive_width().unwrap_or(0))?],
                other => match other.primitive_width() {
                    Some(width) => vec![fixed(first, width)?],
                    None => vec![],
                },
            })
        }
    }

    /// One offset more than there are rows; an empty array may have none.
    ///
    /// # Safety
    /// The array has offsets of this kind.
    unsafe fn offsets<O: Offset>(&self, at: usize, rows: usize) -> Result<Buffer, CDataError> {
        let Some(bytes) = rows.checked_add(1).and_then(|count| count.checked_mul(size_of::<O>()))
        else {
            return refused("an array is too long");
        };
        // SAFETY: the caller's word.
        match unsafe { self.get(at, bytes)? } {
            Some(offsets) => Ok(offsets),
            None if rows == 0 => Ok(Buffer::from_vec(vec![0u64])),
            None => refused("the offsets of an array are null"),
        }
    }

    /// # Safety
    /// The array has offsets of this kind and bytes.
    unsafe fn texts<O: Offset>(&self, at: usize, rows: usize) -> Result<Vec<Buffer>, CDataError> {
        // SAFETY: the caller's word.
        let offsets = unsafe { self.offsets::<O>(at, rows)? };
        // SAFETY: it has an offset behind the last row, at any alignment.
        let last = unsafe { offsets.as_ptr().cast::<O>().add(rows).read_unaligned() };
        let Some(bytes) = last.bytes() else { return refused("an array has a negative offset") };
        // SAFETY: the bytes go to the last offset.
        Ok(vec![offsets, unsafe { self.needed(at + 1, bytes)? }])
    }

    /// # Safety
    /// The array has views.
    unsafe fn views(&self, at: usize, rows: usize) -> Result<Vec<Buffer>, CDataError> {
        let count = usize::try_from(self.array.n_buffers).unwrap_or(0);
        let Some(data) = count.checked_sub(at + 2) else {
            return refused("an array of views has no lengths of its buffers");
        };
        // SAFETY: 16 bytes a row.
        let mut buffers = vec![unsafe { self.needed(at, rows.saturating_mul(16))? }];
        // SAFETY: the last buffer has a length for each of the others.
        let lengths = unsafe { self.needed(count - 1, data.saturating_mul(8))? };
        for number in 0..data {
            // SAFETY: within the lengths, at any alignment.
            let bytes = unsafe { lengths.as_ptr().cast::<i64>().add(number).read_unaligned() };
            let Some(bytes) = bytes.bytes() else {
                return refused("a buffer has a negative length");
            };
            // SAFETY: it is so long.
            buffers.push(unsafe { self.needed(at + 1 + number, bytes)? });
        }
        Ok(buffers)
    }
}

/// Numbers that say how many bytes there are.
trait Offset: Copy {
    fn bytes(self) -> Option<usize>;
}

impl Offset for i32 {
    fn bytes(self) -> Option<usize> {
        usize::try_from(self).ok()
    }
}

impl Offset for i64 {
    fn bytes(self) -> Option<usize> {
        usize::try_from(self).ok()
    }
}
