//! A chart as the place where rows of a `SELECT` go.

use std::io::Write;
use std::sync::Arc;

use millstream::ConnectorError;
use millstream::connector::{Connector, OptionSpec, Options, TableDef};
use millstream::sink::{Placement, Sink, SinkWriter, WriterContext};
use millstream::source::Source;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::data::{Data, Shape, X};
use super::{Look, bars, lines};
use crate::human;
use crate::output::OutputWriter;

/// Draws what it is given when the query has ended.
#[derive(Clone)]
pub(crate) struct ChartConnector {
    output: OutputWriter,
}

impl ChartConnector {
    /// Draws to `output`.
    pub(crate) fn new(output: OutputWriter) -> Self {
        Self { output }
    }
}

impl Connector for ChartConnector {
    fn name(&self) -> &'static str {
        "chart"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn infer(&self, _: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(None)
    }

    fn source(&self, _: &TableDef, _: &[usize]) -> Result<Arc<dyn Source>, ConnectorError> {
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: "'chart' can only be written to".into(),
            hint: None,
        })
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let shape = Shape::of(&table.schema);
        Ok(Arc::new(ChartSink { output: self.output.clone(), shape }))
    }
}

struct ChartSink {
    output: OutputWriter,
    /// `None` where nothing can be drawn.
    shape: Option<Shape>,
}

impl Sink for ChartSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let data = self.shape.clone().map(Data::new);
        Ok(Box::new(Drawing { output: self.output.clone(), data }))
    }
}

struct Drawing {
    output: OutputWriter,
    data: Option<Data>,
}

impl SinkWriter for Drawing {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        match &mut self.data {
            Some(data) => data.add(batch).map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        let picture = match &self.data {
            Some(data) => draw(data, Look::of_terminal()),
            None => NOTHING.to_owned(),
        };
        let written = self.output.write_all(picture.as_bytes());
        written.and_then(|()| self.output.flush()).map_err(|error| failed(&error))
    }
}

const NOTHING: &str = "nothing to draw: a chart needs a column for x, and a number beside it\n";

fn failed(error: &dyn std::fmt::Display) -> ConnectorError {
    ConnectorError::Io { place: "chart".into(), message: error.to_string(), hint: None }
}

fn draw(data: &Data, look: Look) -> String {
    let points: usize = data.series.iter().map(|series| series.points.len()).sum();
    let rows = human::counted(data.rows, "row");
    if points == 0 {
        return format!("nothing to draw: {rows} without numbers\n");
    }
    if data.shape.x == X::Text {
        return bars::draw(data, look);
    }
    let thinned = match data.stride {
        1 => String::new(),
        stride => format!(", one in {} drawn", human::count(stride)),
    };
    format!("{}{rows} over {}{thinned}\n", lines::draw(data, look), data.shape.x_name())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, StringArray, TimestampMillisecondArray};

    use super::*;

    const ASCII: Look = Look { width: 50, height: 8, unicode: false, color: false };
    const PLAIN: Look = Look { unicode: true, ..ASCII };

    fn picture(columns: Vec<(&str, ArrayRef)>, look: Look) -> String {
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut data = Data::new(Shape::of(&batch.schema()).expect("something to draw"));
        data.add(&batch).expect("rows");
        draw(&data, look)
    }

    fn floats(values: &[f64]) -> ArrayRef {
        Arc::new(Float64Array::from(values.to_vec()))
    }

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    /// Hours of a day, and a parabola.
    fn parabola() -> Vec<(&'static str, ArrayRef)> {
        let hours = (0..24).map(|hour| 1_357_034_400_000 + hour * 3_600_000);
        let times: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(hours));
        let y: Vec<f64> = (0..24).map(|x| f64::from(x * (24 - x))).collect();
        vec![("hour", times), ("flights", floats(&y))]
    }

    #[test]
    fn a_line_in_ascii() {
        let expected = "\
* flights
200 +
    |
    |              *****************
100 +          ****                 ****
    |       ***                         ***
    |     **                               **
    |   **                                   **
  0 +***                                       **
    +--------------------------------------------
     10:00:00          21:30:00          09:00:00
24 rows over hour
";
        let got = picture(parabola(), ASCII);
        assert_eq!(got, expected, "\n{got}");
    }

    #[test]
    fn a_line_in_braille() {
        let got = picture(parabola(), PLAIN);
        assert!(got.contains("200 ┤") && got.contains("└──"), "{got}");
        assert!(got.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{got}");
        let widest = got.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(50), "{got}");
    }

    #[test]
    fn bars_in_ascii_and_in_blocks() {
        let rows =
            || vec![("origin", texts(&["EWR", "JFK", "é"])), ("n", floats(&[40.0, 10.0, 0.0]))];
        let expected = "\
EWR |######################################### 40
JFK |########## 10
é   |0
";
        assert_eq!(picture(rows(), ASCII), expected);
        let blocks = picture(rows(), PLAIN);
        assert!(
            blocks.starts_with("EWR │█████") && blocks.contains("JFK │██████████▎ 10"),
            "{blocks}"
        );
    }

    #[test]
    fn bars_on_both_sides_of_zero_meet_at_zero() {
        let rows = vec![("k", texts(&["a", "b"])), ("n", floats(&[-1.0, 1.0]))];
        let look = Look { width: 27, ..ASCII };
        assert_eq!(picture(rows, look), "a |########## -1\nb |          ########## 1\n");
    }

    #[test]
    fn several_series_have_marks_or_colours() {
        let rows = || {
            vec![
                ("x", floats(&[0.0, 1.0, 0.0, 1.0])),
                ("y", floats(&[1.0, 2.0, 4.0, 3.0])),
                ("k", texts(&["a", "a", "b", "b"])),
            ]
        };
        let plain = picture(rows(), PLAIN);
        assert!(plain.starts_with("• a  × b\n"), "{plain}");
        let colored = picture(rows(), Look { color: true, ..PLAIN });
        assert!(colored.contains("\x1b[36m━━\x1b[0m a  \x1b[33m━━\x1b[0m b"), "{colored}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let none = picture(vec![("x", floats(&[])), ("y", floats(&[]))], ASCII);
        assert_eq!(none, "nothing to draw: 0 rows without numbers\n");
        let one = picture(vec![("x", floats(&[3.0])), ("y", floats(&[5.0]))], ASCII);
        assert!(one.contains('*') && one.contains("1 row over x"), "{one}");
        for wild in [f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE] {
            picture(vec![("x", floats(&[0.0, wild])), ("y", floats(&[wild, 0.0]))], ASCII);
        }
    }
}
