//! Values of Arrow as objects of Python, one by one: for [`fetchall`](crate::rows::PyRows).

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float64Type, Int64Type, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType, UInt64Type,
};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::errors::runtime;

/// The day of Python's calendar that is 1970-01-01.
const EPOCH_DAY: i64 = 719_163;

const DAY_MICROSECONDS: i64 = 24 * 60 * 60 * 1_000_000;

/// Rows that are made before other threads may run, and it is seen whether Ctrl-C was pressed.
const ROWS_AT_ONCE: usize = 16_384;

/// The rows of batches as tuples.
pub(crate) fn tuples<'py>(
    py: Python<'py>,
    batches: &[RecordBatch],
) -> PyResult<Bound<'py, PyList>> {
    let rows = PyList::empty(py);
    for batch in batches {
        for first in (0..batch.num_rows()).step_by(ROWS_AT_ONCE) {
            py.detach(|| ());
            py.check_signals()?;
            let part = batch.slice(first, ROWS_AT_ONCE.min(batch.num_rows() - first));
            let columns = part.columns().iter().map(|column| objects(py, column));
            let columns = columns.collect::<PyResult<Vec<_>>>()?;
            for row in 0..part.num_rows() {
                let values = columns.iter().map(|column| column[row].clone_ref(py));
                rows.append(PyTuple::new(py, values)?)?;
            }
        }
    }
    Ok(rows)
}

/// The values of an array. Types without a counterpart in Python come as text.
fn objects(py: Python<'_>, array: &ArrayRef) -> PyResult<Vec<Py<PyAny>>> {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal128, Dictionary, FixedSizeBinary,
        FixedSizeList, Float16, Float32, Float64, Int8, Int16, Int32, Int64, LargeBinary,
        LargeList, LargeUtf8, List, Null, Struct, Time32, Time64, Timestamp, UInt8, UInt16, UInt32,
        UInt64, Utf8, Utf8View,
    };
    match array.data_type() {
        Null => Ok((0..array.len()).map(|_| py.None()).collect()),
        Boolean => {
            let values = array.as_boolean();
            each(py, array, |row| object(values.value(row).into_pyobject(py)?.to_owned()))
        }
        Int8 | Int16 | Int32 | Int64 => {
            let values = converted(array, &Int64)?;
            let values = values.as_primitive::<Int64Type>();
            each(py, array, |row| object(values.value(row).into_pyobject(py)?))
        }
        UInt8 | UInt16 | UInt32 | UInt64 => {
            let values = converted(array, &UInt64)?;
            let values = values.as_primitive::<UInt64Type>();
            each(py, array, |row| object(values.value(row).into_pyobject(py)?))
        }
        Float16 | Float32 | Float64 => {
            let values = converted(array, &Float64)?;
            let values = values.as_primitive::<Float64Type>();
            each(py, array, |row| object(values.value(row).into_pyobject(py)?))
        }
        Utf8 | LargeUtf8 | Utf8View => {
            let values = converted(array, &Utf8View)?;
            let values = values.as_string_view();
            each(py, array, |row| object(values.value(row).into_pyobject(py)?))
        }
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => {
            let values = converted(array, &LargeBinary)?;
            let values = values.as_binary::<i64>();
            each(py, array, |row| object(PyBytes::new(py, values.value(row))))
        }
        Decimal128(..) => {
            let values = array.as_primitive::<Decimal128Type>();
            let decimal = py.import("decimal")?.getattr("Decimal")?;
            each(py, array, |row| object(decimal.call1((values.value_as_string(row),))?))
        }
        Date32 | Date64 | Timestamp(..) | Time32(_) | Time64(_) => times(py, array),
        Dictionary(_, values) => objects(py, &converted(array, values)?),
        List(_) | LargeList(_) | FixedSizeList(..) | Struct(_) => nested(py, array),
        _ => {
            let options = FormatOptions::default();
            let text = formatter(array, &options)?;
            each(py, array, |row| object(text.value(row).to_string().into_pyobject(py)?))
        }
    }
}

fn formatter<'a>(
    array: &'a ArrayRef,
    options: &'a FormatOptions<'a>,
) -> PyResult<ArrayFormatter<'a>> {
    ArrayFormatter::try_new(array, options).map_err(|error| runtime(error.to_string()))
}

/// The values at the rows that are not NULL; None at the others.
fn each(
    py: Python<'_>,
    array: &ArrayRef,
    of: impl Fn(usize) -> PyResult<Py<PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let value = |row| if array.is_null(row) { Ok(py.None()) } else { of(row) };
    (0..array.len()).map(value).collect()
}

fn object<T>(made: Bound<'_, T>) -> PyResult<Py<PyAny>> {
    Ok(made.into_any().unbind())
}

fn converted(array: &ArrayRef, to: &DataType) -> PyResult<ArrayRef> {
    cast(array, to).map_err(|error| runtime(error.to_string()))
}

/// As [`each`], for values of which Python has not all: the others come as text. `converted` are
/// the values of which `of` makes objects, and NULL where that type does not have them.
fn each_or_text(
    py: Python<'_>,
    array: &ArrayRef,
    converted: &dyn Array,
    of: impl Fn(usize) -> PyResult<Py<PyAny>>,
) -> PyResult<Vec<Py<PyAny>>> {
    let text = |row| {
        let options = FormatOptions::default();
        let text = formatter(array, &options)?.value(row).try_to_string();
        let text = text.or_else(|_| {
            // Of a year that Arrow cannot write either.
            let number = self::converted(&array.slice(row, 1), &DataType::Int64)?;
            Ok::<_, PyErr>(number.as_primitive::<Int64Type>().value(0).to_string())
        });
        object(text?.into_pyobject(py)?)
    };
    each(py, array, |row| match of(row) {
        _ if converted.is_null(row) => text(row),
        Err(error) if is_out_of_range(py, &error) => text(row),
        made => made,
    })
}

fn is_out_of_range(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyOverflowError>(py) || error.is_instance_of::<PyValueError>(py)
}

/// Dates, and points in time to the microsecond, as Python has them: of the years 1 to 9999.
fn times(py: Python<'_>, array: &ArrayRef) -> PyResult<Vec<Py<PyAny>>> {
    match array.data_type() {
        DataType::Timestamp(_, zone) => {
            let values = converted(array, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
            let values = values.as_primitive::<TimestampMicrosecondType>();
            let times = Times::new(py, zone.as_deref())?;
            each_or_text(py, array, values, |row| object(times.at(values.value(row))?))
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            let values = converted(array, &DataType::Time64(TimeUnit::Microsecond))?;
            let values = values.as_primitive::<Time64MicrosecondType>();
            let times = Times::new(py, None)?;
            each_or_text(py, array, values, |row| {
                let microseconds = values.value(row);
                if !(0..DAY_MICROSECONDS).contains(&microseconds) {
                    return Err(PyValueError::new_err("it is no time of a day"));
                }
                object(times.at(microseconds)?.call_method0("time")?)
            })
        }
        _ => {
            let values = converted(array, &DataType::Date32)?;
            let values = values.as_primitive::<Date32Type>();
            let date = py.import("datetime")?.getattr("date")?;
            each_or_text(py, array, values, |row| {
                let day = i64::from(values.value(row)) + EPOCH_DAY;
                object(date.call_method1("fromordinal", (day,))?)
            })
        }
    }
}

/// Lists and dictionaries of Python.
fn nested(py: Python<'_>, array: &ArrayRef) -> PyResult<Vec<Py<PyAny>>> {
    match array.data_type() {
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter().map(|column| objects(py, column));
            let columns = columns.collect::<PyResult<Vec<_>>>()?;
            each(py, array, |row| {
                let made = PyDict::new(py);
                for (field, column) in fields.iter().zip(&columns) {
                    made.set_item(field.name(), column[row].clone_ref(py))?;
                }
                object(made)
            })
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            each(py, array, |row| list(py, &lists.value(row)))
        }
        DataType::FixedSizeList(..) => {
            let lists = array.as_fixed_size_list();
            each(py, array, |row| list(py, &lists.value(row)))
        }
        _ => {
            let lists = array.as_list::<i32>();
            each(py, array, |row| list(py, &lists.value(row)))
        }
    }
}

fn list(py: Python<'_>, values: &ArrayRef) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, objects(py, values)?)?.into_any().unbind())
}

/// Makes points in time.
struct Times<'py> {
    epoch: Bound<'py, PyAny>,
    delta: Bound<'py, PyAny>,
    zone: Option<Bound<'py, PyAny>>,
}

impl<'py> Times<'py> {
    fn new(py: Python<'py>, zone: Option<&str>) -> PyResult<Self> {
        let datetime = py.import("datetime")?;
        let zone = match zone {
            None => None,
            Some("UTC" | "+00:00") => Some(datetime.getattr("timezone")?.getattr("utc")?),
            Some(zone) => Some(time_zone(&datetime, zone)?),
        };
        let utc = datetime.getattr("timezone")?.getattr("utc")?;
        let none = py.None().into_bound(py);
        let of = if zone.is_some() { &utc } else { &none };
        let epoch = datetime.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, of))?;
        Ok(Self { epoch, delta: datetime.getattr("timedelta")?, zone })
    }

    /// The point in time of a number of microseconds after 1970.
    fn at(&self, microseconds: i64) -> PyResult<Bound<'py, PyAny>> {
        let time = self.epoch.add(self.delta.call1((0, 0, microseconds))?)?;
        match &self.zone {
            None => Ok(time),
            Some(zone) => time.call_method1("astimezone", (zone,)),
        }
    }
}

/// A zone by its name, or by its distance from UTC: `+05:30`.
fn time_zone<'py>(datetime: &Bound<'py, PyModule>, zone: &str) -> PyResult<Bound<'py, PyAny>> {
    let distance = || {
        let (sign, rest) = match zone.split_at_checked(1)? {
            ("+", rest) => (1, rest),
            ("-", rest) => (-1, rest),
            _ => return None,
        };
        let (hours, minutes) = rest.split_once(':')?;
        Some(sign * (60 * hours.parse::<i64>().ok()? + minutes.parse::<i64>().ok()?))
    };
    let Some(minutes) = distance() else {
        return datetime.py().import("zoneinfo")?.getattr("ZoneInfo")?.call1((zone,));
    };
    let delta = datetime.getattr("timedelta")?.call1((0, 60 * minutes))?;
    datetime.getattr("timezone")?.call1((delta,))
}
