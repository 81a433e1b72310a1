//! Schemas and batches at random, of every type that travels.

use std::sync::Arc;

use arrow::array::types::{
    ArrowDictionaryKeyType, Int8Type, Int32Type, RunEndIndexType, UInt16Type,
};
use arrow::array::{
    Array, ArrayData, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, DictionaryArray,
    FixedSizeListArray, GenericListArray, GenericListViewArray, LargeBinaryArray, LargeStringArray,
    MapArray, NullArray, OffsetSizeTrait, PrimitiveArray, RunArray, StringArray, StringViewArray,
    StructArray, UnionArray, make_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowNativeType, DataType, Field, FieldRef, Fields, Int16Type, IntervalUnit, Schema, SchemaRef,
    TimeUnit, UnionFields, UnionMode,
};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

/// Rows before and behind those of an array, at most: arrays are slices.
const PADDING: usize = 9;

/// Numbers that look like chance: splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below another one, which is not zero.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Up to five columns.
    pub(super) fn schema(&mut self) -> SchemaRef {
        let columns = self.below(6);
        let field = |at: usize| Field::new(format!("{at}"), self.data_type(3), true);
        Arc::new(Schema::new((0..columns).map(field).collect::<Vec<_>>()))
    }

    /// Rows of a schema.
    pub(super) fn batch(&mut self, schema: &SchemaRef, rows: usize) -> RecordBatch {
        let column = |field: &FieldRef| self.array(field.data_type(), rows);
        let columns = schema.fields().iter().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options).expect("a batch")
    }

    fn data_type(&mut self, depth: usize) -> DataType {
        if depth == 0 || !self.one_in(3) {
            return self.flat_type();
        }
        let mut field = |name: &str| Arc::new(Field::new(name, self.data_type(depth - 1), true));
        let (one, other) = (field("one"), field("other"));
        let ids = [3, 0];
        let fields = || UnionFields::try_new(ids, [one.clone(), other.clone()]).expect("two types");
        match self.below(9) {
            0 => DataType::List(one),
            1 => DataType::LargeList(one),
            2 => DataType::ListView(one),
            3 => DataType::LargeListView(one),
            4 => DataType::FixedSizeList(one, 1 + self.below(3) as i32),
            5 => DataType::Struct(Fields::from(vec![one, other])),
            6 => DataType::Union(fields(), UnionMode::Sparse),
            7 => DataType::Union(fields(), UnionMode::Dense),
            _ => {
                let key = Arc::new(Field::new("key", DataType::Utf8, false));
                let entries = DataType::Struct(Fields::from(vec![key, one]));
                DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
            }
        }
    }

    fn flat_type(&mut self) -> DataType {
        let types = [
            DataType::Null,
            DataType::Boolean,
            DataType::Int8,
            DataType::UInt16,
            DataType::Int32,
            DataType::Int64,
            DataType::UInt64,
            DataType::Float16,
            DataType::Float32,
            DataType::Float64,
            DataType::Date32,
            DataType::Date64,
            DataType::Time32(TimeUnit::Second),
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Timestamp(TimeUnit::Microsecond, Some("+02:00".into())),
            DataType::Duration(TimeUnit::Millisecond),
            DataType::Interval(IntervalUnit::YearMonth),
            DataType::Interval(IntervalUnit::DayTime),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::Decimal32(9, 2),
            DataType::Decimal64(18, 2),
            DataType::Decimal128(38, 2),
            DataType::Decimal256(76, 2),
            DataType::FixedSizeBinary(1),
            DataType::FixedSizeBinary(3),
            DataType::FixedSizeBinary(16),
            DataType::Utf8,
            DataType::LargeUtf8,
            DataType::Binary,
            DataType::LargeBinary,
            DataType::Utf8View,
            DataType::BinaryView,
            dictionary(DataType::Int8, DataType::Utf8),
            dictionary(DataType::Int32, DataType::Int64),
            dictionary(DataType::UInt16, DataType::Utf8View),
            runs(DataType::Int16, DataType::Utf8),
            runs(DataType::Int32, DataType::Int64),
        ];
        types[self.below(types.len())].clone()
    }

    /// An array of `rows` rows, which is a slice of another one.
    pub(super) fn array(&mut self, data_type: &DataType, rows: usize) -> ArrayRef {
        let (before, behind) = (self.below(PADDING), self.below(PADDING));
        self.whole(data_type, before + rows + behind).slice(before, rows)
    }

    fn nulls(&mut self, rows: usize) -> Option<NullBuffer> {
        let share = [0, 1, 2, 9][self.below(4)];
        (share > 0).then(|| (0..rows).map(|_| !self.one_in(share)).collect())
    }

    fn whole(&mut self, data_type: &DataType, rows: usize) -> ArrayRef {
        match data_type {
            DataType::Null => Arc::new(NullArray::new(rows)),
            DataType::Boolean => {
                let bits = (0..rows).map(|_| self.one_in(2)).collect();
                Arc::new(BooleanArray::new(bits, self.nulls(rows)))
            }
            DataType::Utf8 => Arc::new(StringArray::from_iter(self.texts(rows))),
            DataType::LargeUtf8 => Arc::new(LargeStringArray::from_iter(self.texts(rows))),
            DataType::Utf8View => Arc::new(StringViewArray::from_iter(self.texts(rows))),
            DataType::Binary => Arc::new(BinaryArray::from_iter(self.texts(rows))),
            DataType::LargeBinary => Arc::new(LargeBinaryArray::from_iter(self.texts(rows))),
            DataType::BinaryView => Arc::new(BinaryViewArray::from_iter(self.texts(rows))),
            DataType::List(field) => self.list::<i32>(field, rows),
            DataType::LargeList(field) => self.list::<i64>(field, rows),
            DataType::ListView(field) => self.list_view::<i32>(field, rows),
            DataType::LargeListView(field) => self.list_view::<i64>(field, rows),
            DataType::FixedSizeList(field, length) => {
                let values = self.array(field.data_type(), rows * *length as usize);
                let nulls = self.nulls(rows);
                let (field, length) = (field.clone(), *length);
                let list =
                    FixedSizeListArray::try_new_with_length(field, length, values, nulls, rows);
                Arc::new(list.expect("lists"))
            }
            DataType::Struct(fields) => {
                let columns = self.columns(fields, rows);
                let nulls = self.nulls(rows);
                let rows = StructArray::try_new_with_length(fields.clone(), columns, nulls, rows);
                Arc::new(rows.expect("a struct"))
            }
            DataType::Map(entries, ordered) => {
                let DataType::Struct(fields) = entries.data_type() else { unreachable!() };
                let (offsets, all) = self.offsets::<i32>(rows);
                let keys: ArrayRef =
                    Arc::new(StringArray::from_iter_values((0..all).map(|at| format!("{at}"))));
                let values = self.array(fields[1].data_type(), all);
                let rows_of = StructArray::new(fields.clone(), vec![keys, values], None);
                let nulls = self.nulls(rows);
                Arc::new(MapArray::new(entries.clone(), offsets, rows_of, nulls, *ordered))
            }
            DataType::Union(fields, mode) => self.union(fields, *mode, rows),
            DataType::Dictionary(key, values) => match **key {
                DataType::Int8 => self.dictionary::<Int8Type>(values, rows),
                DataType::Int32 => self.dictionary::<Int32Type>(values, rows),
                _ => self.dictionary::<UInt16Type>(values, rows),
            },
            DataType::RunEndEncoded(ends, values) => match ends.data_type() {
                DataType::Int16 => self.runs::<Int16Type>(values.data_type(), rows),
                _ => self.runs::<Int32Type>(values.data_type(), rows),
            },
            fixed => self.fixed(fixed, rows),
        }
    }

    fn columns(&mut self, fields: &Fields, rows: usize) -> Vec<ArrayRef> {
        fields.iter().map(|field| self.array(field.data_type(), rows)).collect()
    }

    fn fixed(&mut self, data_type: &DataType, rows: usize) -> ArrayRef {
        let width = match data_type {
            DataType::FixedSizeBinary(width) => *width as usize,
            _ => data_type.primitive_width().expect("a width"),
        };
        let bytes: Vec<u8> = (0..rows * width).map(|_| self.next() as u8).collect();
        let array = ArrayData::builder(data_type.clone())
            .len(rows)
            .add_buffer(Buffer::from_slice_ref(&bytes))
            .nulls(self.nulls(rows));
        make_array(array.build().expect("values"))
    }

    fn texts(&mut self, rows: usize) -> Vec<Option<String>> {
        let share = 2 + self.below(9);
        let longest = [3, 20, 90][self.below(3)];
        let mut text = || {
            let (missing, length) = (self.one_in(share), self.below(longest));
            let letter = |_: usize| {
                let first = [97, 0xe9, 0x1f600][self.below(3)];
                char::from_u32(first + self.below(9) as u32)
            };
            let text: String = (0..length).filter_map(letter).collect();
            (!missing).then_some(text)
        };
        (0..rows).map(|_| text()).collect()
    }

    fn offsets<O: OffsetSizeTrait>(&mut self, rows: usize) -> (OffsetBuffer<O>, usize) {
        let lengths: Vec<usize> = (0..rows).map(|_| self.below(4)).collect();
        let all = lengths.iter().sum();
        (OffsetBuffer::from_lengths(lengths), all)
    }

    fn list<O: OffsetSizeTrait>(&mut self, field: &FieldRef, rows: usize) -> ArrayRef {
        let (offsets, all) = self.offsets::<O>(rows);
        let values = self.array(field.data_type(), all);
        Arc::new(GenericListArray::new(field.clone(), offsets, values, self.nulls(rows)))
    }

    fn list_view<O: OffsetSizeTrait>(&mut self, field: &FieldRef, rows: usize) -> ArrayRef {
        let all = 20;
        let values = self.array(field.data_type(), all);
        let (mut offsets, mut sizes) = (vec![], vec![]);
        for _ in 0..rows {
            let from = self.below(all + 1);
            offsets.push(O::usize_as(from));
            sizes.push(O::usize_as(self.below(4.min(all - from) + 1)));
        }
        let (offsets, sizes) = (ScalarBuffer::from(offsets), ScalarBuffer::from(sizes));
        let nulls = self.nulls(rows);
        Arc::new(GenericListViewArray::new(field.clone(), offsets, sizes, values, nulls))
    }

    fn union(&mut self, fields: &UnionFields, mode: UnionMode, rows: usize) -> ArrayRef {
        let ids: Vec<i8> = fields.iter().map(|(id, _)| id).collect();
        let types: Vec<i8> = (0..rows).map(|_| ids[self.below(ids.len())]).collect();
        let dense = mode == UnionMode::Dense;
        // Values of a dense union may stand in any order, and several rows may have the same one.
        let values = if dense { 5 } else { rows };
        let offsets = (0..rows).map(|_| self.below(values) as i32);
        let offsets = dense.then(|| ScalarBuffer::from(offsets.collect::<Vec<_>>()));
        let children = fields.iter().map(|(_, field)| self.array(field.data_type(), values));
        let children = children.collect();
        let union = UnionArray::try_new(fields.clone(), types.into(), offsets, children);
        Arc::new(union.expect("a union"))
    }

    fn dictionary<K: ArrowDictionaryKeyType>(
        &mut self,
        values: &DataType,
        rows: usize,
    ) -> ArrayRef {
        // A dictionary may be empty, where all keys are NULL.
        let words = self.below(6);
        let values = self.array(values, words);
        let mut key = |_| (words > 0 && !self.one_in(4)).then(|| self.below(words));
        let keys = (0..rows).map(|row| key(row).and_then(K::Native::from_usize));
        let keys: PrimitiveArray<K> = keys.collect();
        Arc::new(DictionaryArray::new(keys, values))
    }

    fn runs<R: RunEndIndexType>(&mut self, values: &DataType, rows: usize) -> ArrayRef {
        let mut ends = vec![];
        while ends.last().is_none_or(|&end| end < rows) {
            let end = ends.last().copied().unwrap_or(0) + 1 + self.below(4);
            ends.push(end.min(rows.max(1)));
        }
        let values = self.array(values, ends.len());
        let ends: PrimitiveArray<R> = ends.into_iter().map(R::Native::from_usize).collect();
        let runs = RunArray::try_new(&ends, &values).expect("runs");
        Arc::new(runs.slice(0, rows))
    }
}

fn dictionary(key: DataType, values: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(values))
}

fn runs(ends: DataType, values: DataType) -> DataType {
    let field = |name: &str, of, nullable| Arc::new(Field::new(name, of, nullable));
    DataType::RunEndEncoded(field("run_ends", ends, false), field("values", values, true))
}
