//! Records that are read in one pass are those of the library.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use arrow::datatypes::TimeUnit;
use arrow::util::pretty::pretty_format_batches;
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use proptest::prelude::*;

use super::plain::{Come, PlainScan};
use super::*;
use crate::format::rows::TargetColumns;

/// Gives a few bytes at a time.
struct Slow(Cursor<Vec<u8>>, usize);

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes = into.len().min(self.1);
        self.0.read(&mut into[..bytes])
    }
}

/// Rows with the places where they begin, and bad rows.
fn decoded(
    text: &[u8],
    options: &[(&str, &str)],
    (pieces, rows): (usize, usize),
    by_library: bool,
) -> [String; 2] {
    let mut schema = vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Utf8, false),
        Field::new("c", DataType::Timestamp(TimeUnit::Millisecond, None), true),
        Field::new("n", DataType::Int64, true),
    ];
    schema.swap(0, 1);
    let options: BTreeMap<String, String> =
        options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let table = TableDef {
        name: "t".into(),
        schema: Arc::new(Schema::new(schema)),
        options: options.clone(),
        metadata: [(3, "record".to_owned())].into(),
        buckets: vec![],
    };
    let bad = Arc::new(BadRows::collecting());
    let target = Arc::new(TargetColumns::new(&table, &[0, 1, 2, 3]).unwrap());
    let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
    let dialect = Dialect::new(OptionReader(&options), "t.csv").unwrap();
    let reader = Slow(Cursor::new(text.to_vec()), pieces);
    let mut decoder = CsvDecoder::new(ByteInput::new(Box::new(reader), "t.csv"), dialect, refuser);
    decoder.records.by_library = by_library;
    let (mut batches, mut places) = (Vec::new(), Vec::new());
    loop {
        match decoder.decode(rows).unwrap() {
            Decoded::Batch(batch) => batches.push(batch),
            Decoded::Later => panic!("a text is there as a whole"),
            Decoded::End => break,
        }
        places.push(format!("{:?}", decoder.place()));
    }
    let bad =
        bad.take().into_iter().map(|bad| format!("{}: {} {}", bad.place, bad.reason, bad.text));
    let bad: Vec<String> = bad.collect();
    let rows = pretty_format_batches(&batches).unwrap().to_string();
    [format!("{rows}\n{}", places.join("\n")), bad.join("\n")]
}

fn is_same(text: &[u8], options: &[(&str, &str)]) {
    for pieces in [(3, 5), (1000, 5), (1 << 20, 3000)] {
        let [ours, theirs] =
            [false, true].map(|by_library| decoded(text, options, pieces, by_library));
        assert_eq!(ours, theirs, "{:?} {options:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn records_of_all_forms_are_those_of_the_library() {
    let text = "\u{feff}b,a,c\r\n\
        x,1,2024-01-31 10:20:30.123\n\
        \"x, y\",2,2024-01-31T10:20:30\r\n\r\n\n\
        \"a \"\"quote\"\"\",3,\n\
        in\"side,4,2024-01-31\n\
        \"two\nlines\",5,\n\
        \"torn,6,\n\
        \"a\"b,7,\n\
        x,8\n\
        x,9,,\n\
        \u{feff}x,10,\n\
        , 11 ,1700000000000\n\
        return\rx,12,\r\r\n\
        'x',-13,1969-12-31 23:59:59.9999\n\
        NA,NA,NA\n\
        \"NA\",14,\"NA\"\n\
        #comment,15,\n\
        \u{fc},+16,\"2024-01-31 10:20:30\"\n\
        last,017,";
    is_same(text.as_bytes(), &[]);
    is_same(text.as_bytes(), &[("csv.null", "NA,x"), ("csv.comment", "#")]);
    is_same(text.as_bytes(), &[("csv.quote", "'"), ("csv.header", "false")]);
    is_same(text.replace(',', ";").as_bytes(), &[("csv.delimiter", ";")]);
    is_same(text.replace('"', ",").as_bytes(), &[("csv.quote", ",")]);
    is_same(&[text.as_bytes(), b"\nx\xff,18,\n\"\xff\",19,\n"].concat(), &[]);
}

/// Plain records of three fields, some of which are longer than a block or begin within one.
fn plain_text(rows: usize, line_end: &str) -> String {
    let mut text = String::new();
    for row in 0..rows {
        let url = "u/".repeat(row * row % 53);
        text += &format!("\"{url}\",{row},2024-01-{:02} 10:{:02}:30", row % 31 + 1, row % 60);
        text += line_end;
    }
    text
}

#[test]
fn plain_records_are_read_without_the_library() {
    let dialect = Dialect::new(OptionReader(&BTreeMap::new()), "t.csv").unwrap();
    for (rows, line_end) in [(1, "\n"), (700, "\n"), (1500, "\r\n"), (900, "\r\n\n")] {
        let text = plain_text(rows, line_end);
        let come = Come {
            bytes: text.as_bytes(),
            offset: 7,
            begin_max: usize::MAX,
            rows_max: usize::MAX,
            dialect: &dialect,
            width: 3,
        };
        let (mut spans, mut fields, mut line) = (vec![], vec![], 1);
        let end = PlainScan::default().read(&come, 0, (&mut spans, &mut fields, &mut line));
        assert_eq!((spans.len(), fields.len()), (rows, 3 * rows));
        assert_eq!(text[..end].trim_end(), text.trim_end(), "all of it");
        let found = fields.iter().map(|field| {
            let (unquoted, place) = field.place();
            assert!(!unquoted);
            &text[place]
        });
        let fields = text.lines().filter(|line| !line.is_empty()).flat_map(|line| line.split(','));
        assert!(found.eq(fields.map(|field| field.trim_matches('"'))));
    }
}

#[test]
fn records_among_plain_ones_are_those_of_the_library() {
    let rows = plain_text(400, "\n");
    let odd = [
        "\"a \"\"quote\"\"\",1,\n",
        "in\"side,2,\n",
        "\"two\nlines\",3,\n",
        "\"torn,4,\n",
        "\"a\"b,5,\n",
        "few,6\n",
        "many,7,,\n",
        "\r\n\n\r",
        "return\rx,8,\r\r\n",
        "\"return\r\",9,\r\n",
        "\"\",,\n",
        "\u{fc},10,\n",
    ];
    // Each odd record at each place of a block.
    for (at, odd) in odd.iter().enumerate() {
        let mut text = "b,a,c\n".to_owned();
        for line in rows.split_inclusive('\n').skip(at) {
            text += line;
            text += odd;
        }
        is_same(text.as_bytes(), &[]);
    }
    let all: String = rows
        .split_inclusive('\n')
        .zip(odd.iter().cycle())
        .fold(String::new(), |text, (line, odd)| text + line + line + odd);
    is_same(all.as_bytes(), &[("csv.header", "false")]);
    is_same(all.as_bytes(), &[("csv.header", "false"), ("csv.comment", "u")]);
    is_same(
        all.replace('"', "'").as_bytes(),
        &[("csv.header", "false"), ("csv.quote", "'"), ("csv.null", "few,1")],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn records_of_any_text_are_those_of_the_library(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "\n", "\n", "\r\n", "\r", "\"", "\"\"", ",", ",", ",", "1", "x", " ", "#", "NA",
                "x,2,\n", "\"y\",3,2024-01-31 10:20:30\n", "\"a\nb\",", "\u{feff}", "\u{fc}",
                "z,\"\"\"\",\n", "w,5,\"\"\r\n",
                "\"long, and longer than others\",6,2024-01-31\n",
                "more,7,2024-01-31 10:20:30.5\r\n",
            ]),
            0..80,
        ),
        header in any::<bool>(),
        comment in any::<bool>(),
    ) {
        let begin = if header { "b,a,c\n" } else { "" };
        let header = if header { "true" } else { "false" };
        let mut options = vec![("csv.header", header), ("csv.null", "NA")];
        if comment {
            options.push(("csv.comment", "#"));
        }
        is_same(format!("{begin}{}", pieces.concat()).as_bytes(), &options);
    }
}
