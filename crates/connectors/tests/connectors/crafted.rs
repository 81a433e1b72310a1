//! Parquet files that no writer would make: what they state and what they have are set one by one.

use std::io::Write;

/// A structure in the compact protocol of Thrift.
#[derive(Default)]
struct Structure {
    bytes: Vec<u8>,
    last: u8,
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn zigzag(value: i64) -> Vec<u8> {
    varint((value << 1 ^ value >> 63) as u64)
}

impl Structure {
    fn field(mut self, id: u8, kind: u8, value: &[u8]) -> Self {
        self.bytes.push((id - self.last) << 4 | kind);
        self.bytes.extend_from_slice(value);
        self.last = id;
        self
    }

    fn i32(self, id: u8, value: i64) -> Self {
        self.field(id, 5, &zigzag(value))
    }

    fn i64(self, id: u8, value: i64) -> Self {
        self.field(id, 6, &zigzag(value))
    }

    fn text(self, id: u8, text: &str) -> Self {
        let value = [varint(text.len() as u64), text.into()].concat();
        self.field(id, 8, &value)
    }

    fn list(self, id: u8, kind: u8, elements: &[Vec<u8>]) -> Self {
        let head = [vec![0xf0 | kind], varint(elements.len() as u64)].concat();
        self.field(id, 9, &[head, elements.concat()].concat())
    }

    fn structure(self, id: u8, inner: Self) -> Self {
        let inner = inner.end();
        self.field(id, 12, &inner)
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn file(body: &[u8], footer: &[u8]) -> Vec<u8> {
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", body, footer, &length, b"PAR1"].concat()
}

fn node(name: &str, of: Option<i64>, repetition: i64, children: i64) -> Vec<u8> {
    let mut node = Structure::default();
    if let Some(of) = of {
        node = node.i32(1, of);
    }
    node = node.i32(3, repetition).text(4, name);
    if children > 0 {
        node = node.i32(5, children);
    }
    node.end()
}

fn footer(schema: &[Vec<u8>], rows: i64, groups: &[Vec<u8>]) -> Vec<u8> {
    Structure::default().i32(1, 1).list(2, 12, schema).i64(3, rows).list(4, 12, groups).end()
}

/// A file without rows whose only column stands within so many groups.
pub fn deep(groups: usize) -> Vec<u8> {
    let mut schema = vec![node("s", None, 0, 1)];
    schema.extend(std::iter::repeat_n(node("a", None, 1, 1), groups));
    schema.push(node("z", Some(1), 1, 0));
    file(b"", &footer(&schema, 0, &[]))
}

/// A file without rows with so many columns.
pub fn wide(columns: usize) -> Vec<u8> {
    let mut schema = vec![node("s", None, 0, columns as i64)];
    schema.extend((0..columns).map(|column| node(&format!("c{column}"), Some(1), 1, 0)));
    file(b"", &footer(&schema, 0, &[]))
}

/// A file of one column `a INT`, which cannot be NULL, with one page.
pub struct OneColumn {
    /// The bytes of the page, packed.
    pub packed: Vec<u8>,
    /// Its codec: 0 none, 2 gzip, 4 Brotli, 6 zstd.
    pub codec: i64,
    /// What it states to unpack to.
    pub unpacked: i64,
    /// The rows that the file and its row group state.
    pub rows: i64,
    /// The values that the column states.
    pub column_values: i64,
    /// The values that the page states.
    pub page_values: i64,
    pub checksum: Option<u32>,
    /// The encoding that the page states: 0 plain, 8 by a dictionary.
    pub encoding: i64,
    /// Where the column begins.
    pub offset: i64,
    /// Its bytes.
    pub bytes: Option<i64>,
    /// The file that it is in, if it is another.
    pub elsewhere: Option<&'static str>,
    /// Whether it states to be encrypted.
    pub encrypted: bool,
}

impl OneColumn {
    /// The numbers 1 to 4, whole.
    pub fn whole() -> Self {
        let packed = [1_i32, 2, 3, 4].map(i32::to_le_bytes).concat();
        let (rows, column_values, page_values) = (4, 4, 4);
        Self {
            packed,
            codec: 0,
            unpacked: 16,
            rows,
            column_values,
            page_values,
            checksum: None,
            encoding: 0,
            offset: 4,
            bytes: None,
            elsewhere: None,
            encrypted: false,
        }
    }

    /// The same, packed by gzip.
    pub fn packed(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let values = Structure::default().i32(1, self.page_values);
        let values = values.i32(2, self.encoding).i32(3, 3).i32(4, 3);
        let mut header = Structure::default();
        header = header.i32(1, 0).i32(2, self.unpacked).i32(3, self.packed.len() as i64);
        if let Some(checksum) = self.checksum {
            header = header.i32(4, i64::from(checksum as i32));
        }
        let body = [header.structure(5, values).end(), self.packed.clone()].concat();
        let column = Structure::default()
            .i32(1, 1)
            .list(2, 5, &[zigzag(0)])
            .list(3, 8, &[[varint(1), b"a".to_vec()].concat()])
            .i32(4, self.codec)
            .i64(5, self.column_values)
            .i64(6, body.len() as i64)
            .i64(7, self.bytes.unwrap_or(body.len() as i64))
            .i64(9, self.offset);
        let mut chunk = Structure::default();
        if let Some(path) = self.elsewhere {
            chunk = chunk.text(1, path);
        }
        chunk = chunk.i64(2, 4).structure(3, column);
        if self.encrypted {
            // With the key of the footer.
            chunk = chunk.structure(8, Structure::default().structure(1, Structure::default()));
        }
        let chunk = chunk.end();
        let group = Structure::default().list(1, 12, &[chunk]).i64(2, 16).i64(3, self.rows).end();
        let schema = [node("s", None, 0, 1), node("a", Some(1), 0, 0)];
        file(&body, &footer(&schema, self.rows, &[group]))
    }
}
