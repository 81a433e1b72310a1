//! Records as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{
    BaseCheckpoint, Begin, CheckpointManifest, ENTRIES_MAX, Holder, OperatorEntry,
    POSITION_BYTES_MAX, Record, RecordBody, STAGED_BYTES_MAX, SegmentEntry, SinkEntry, SourceEntry,
    SplitEntry, StagedPart, TEXT_BYTES_MAX, TableEntry,
};
use crate::store::ObjectName;

/// Why a record is none, and the byte of its JSON where that was found.
pub(super) type Malformed = (u64, String);

/// A record as JSON that [`decode`] reads again.
pub(super) fn encode(record: &Record) -> Result<String, String> {
    let (kind, mut fields) = match &record.body {
        RecordBody::Begin(begin) => ("begin", begin_to(begin)),
        RecordBody::Manifest(manifest) => ("manifest", manifest_to(manifest)),
        RecordBody::Settled(of) => ("settled", json!({ "of": base_to(of) })),
        RecordBody::Done(of) => ("done", json!({ "of": base_to(of) })),
    };
    fields["kind"] = json!(kind);
    fields["generation"] = json!(record.generation);
    fields["job"] = json!(record.job);
    fields["record"] = json!(record.record);
    fields["run"] = json!(record.run);
    fields["copy"] = json!(record.kept);
    // The writer keeps the bounds of the reader, so that each record can be read.
    from_value(&fields)?;
    Ok(fields.to_string())
}

pub(super) fn decode(json: &[u8]) -> Result<Record, Malformed> {
    let value: Value = serde_json::from_slice(json).map_err(|error| {
        // The JSON of a record is one line.
        (error.column().saturating_sub(1) as u64, format!("it is no JSON: {error}"))
    })?;
    from_value(&value).map_err(|reason| (0, reason))
}

fn from_value(value: &Value) -> Result<Record, String> {
    let fields = Fields::of(value, "record")?;
    let generation = fields.number("generation")?;
    if generation == 0 {
        return Err("'generation' of record is 0, and the first one is 1".to_owned());
    }
    let body = match fields.text("kind")?.as_str() {
        "begin" => RecordBody::Begin(begin_from(&fields)?),
        "manifest" => RecordBody::Manifest(manifest_from(&fields)?),
        "settled" => RecordBody::Settled(base_from(fields.get("of")?)?),
        "done" => RecordBody::Done(base_from(fields.get("of")?)?),
        other => return Err(format!("'kind' of record is {other:?}, which is none")),
    };
    let (job, record) = (fields.text("job")?, fields.number("record")?);
    let kept = fields.option("copy").map(|_| fields.text("copy")).transpose()?;
    let run = fields.number("run")?;
    Ok(Record { job, record, generation, run, kept, body })
}

fn begin_to(begin: &Begin) -> Value {
    let Holder { host, machine, pid, started, nonce } = &begin.holder;
    json!({
        "holder": { "host": host, "machine": machine, "pid": pid, "started": started,
            "nonce": nonce },
        "nodes": begin.nodes, "workers": begin.workers, "release": begin.release,
        "fingerprint": begin.fingerprint, "sql": begin.sql, "round": begin.round,
        "base": begin.base.as_ref().map(base_to),
    })
}

fn begin_from(fields: &Fields<'_>) -> Result<Begin, String> {
    let holder = Fields::of(fields.get("holder")?, "holder")?;
    Ok(Begin {
        holder: Holder {
            host: holder.text("host")?,
            machine: holder.text("machine")?,
            pid: holder.small("pid")?,
            started: holder.number("started")?,
            nonce: holder.number("nonce")?,
        },
        nodes: fields.small("nodes")?,
        workers: fields.small("workers")?,
        release: fields.text("release")?,
        fingerprint: fields.text("fingerprint")?,
        sql: fields.text("sql")?,
        round: fields.number("round")?,
        base: fields.option("base").map(base_from).transpose()?,
    })
}

fn base_to(base: &BaseCheckpoint) -> Value {
    json!({ "record": base.record, "number": base.number, "kept": base.kept })
}

fn base_from(value: &Value) -> Result<BaseCheckpoint, String> {
    let fields = Fields::of(value, "checkpoint")?;
    let kept = fields.option("kept").map(|_| fields.text("kept")).transpose()?;
    if let Some(kept) = &kept {
        ObjectName::job(kept).map_err(|error| error.to_string())?;
    }
    Ok(BaseCheckpoint { record: fields.number("record")?, number: fields.number("number")?, kept })
}

fn manifest_to(of: &CheckpointManifest) -> Value {
    let operators: Vec<Value> = of
        .operators
        .iter()
        .map(|of| json!({ "id": of.id, "text": of.text, "watermark": of.watermark }))
        .collect();
    let segment = |of: &SegmentEntry| json!({ "file": of.file, "bytes": of.bytes, "crc": of.crc });
    let segments: Vec<Value> = of.segments.iter().map(segment).collect();
    let referred: Vec<Value> = of.referred.iter().map(segment).collect();
    let split = |of: &SplitEntry| {
        json!({ "name": of.name, "position": hex(&of.position), "greatest": of.greatest,
            "ended": of.ended })
    };
    let sources: Vec<Value> = of
        .sources
        .iter()
        .map(|of| json!({ "id": of.id, "splits": of.splits.iter().map(split).collect::<Vec<_>>() }))
        .collect();
    let part = |of: &StagedPart| json!({ "part": of.part, "staged": hex(&of.staged) });
    let sink = |of: &SinkEntry| {
        let parts: Vec<Value> = of.parts.iter().map(part).collect();
        json!({ "id": of.id, "parts": parts, "mark": of.mark })
    };
    let sinks: Vec<Value> = of.sinks.iter().map(sink).collect();
    let table = |of: &TableEntry| json!({ "table": of.table, "version": of.version });
    let tables: Vec<Value> = of.tables.iter().map(table).collect();
    json!({
        "number": of.number, "parent": of.parent, "nodes": of.nodes, "workers": of.workers,
        "fingerprint": of.fingerprint, "operators": operators, "segments": segments,
        "referred": referred, "tables": tables,
        "sources": sources, "sinks": sinks, "counters": of.counters, "settled": of.settled,
    })
}

fn manifest_from(fields: &Fields<'_>) -> Result<CheckpointManifest, String> {
    let counters = fields.get("counters")?.as_object();
    let counters = counters.ok_or("'counters' of record is no object")?;
    let counter = |(name, value): (&String, &Value)| {
        let value = value.as_u64().ok_or_else(|| format!("counter {name:?} is no number"))?;
        Ok::<_, String>((name.clone(), value))
    };
    Ok(CheckpointManifest {
        number: fields.number("number")?,
        parent: fields.option("parent").map(|_| fields.number("parent")).transpose()?,
        nodes: fields.small("nodes")?,
        workers: fields.small("workers")?,
        fingerprint: fields.text("fingerprint")?,
        operators: fields.list("operators", operator_from)?,
        segments: fields.list("segments", segment_from)?,
        referred: match fields.option("referred") {
            Some(_) => fields.list("referred", segment_from)?,
            None => Vec::new(),
        },
        sources: fields.list("sources", source_from)?,
        sinks: fields.list("sinks", sink_from)?,
        tables: match fields.option("tables") {
            Some(_) => fields.list("tables", table_from)?,
            // The first records did not list them.
            None => Vec::new(),
        },
        counters: counters.iter().map(counter).collect::<Result<_, _>>()?,
        settled: fields.option("settled").map(|_| fields.number("settled")).transpose()?,
    })
}

fn table_from(value: &Value) -> Result<TableEntry, String> {
    let fields = Fields::of(value, "table")?;
    Ok(TableEntry { table: fields.text("table")?, version: fields.number("version")? })
}

fn operator_from(value: &Value) -> Result<OperatorEntry, String> {
    let fields = Fields::of(value, "operator")?;
    Ok(OperatorEntry {
        id: fields.text("id")?,
        text: fields.text("text")?,
        watermark: fields.time("watermark")?,
    })
}

fn segment_from(value: &Value) -> Result<SegmentEntry, String> {
    let fields = Fields::of(value, "segment")?;
    let file = fields.text("file")?;
    // It becomes the last part of a name.
    if file.contains('/') || ObjectName::new(file.as_str()).is_err() {
        return Err(format!("'file' of segment is {file:?}, which is no name"));
    }
    Ok(SegmentEntry { file, bytes: fields.number("bytes")?, crc: fields.small("crc")? })
}

fn source_from(value: &Value) -> Result<SourceEntry, String> {
    let fields = Fields::of(value, "source")?;
    Ok(SourceEntry { id: fields.text("id")?, splits: fields.list("splits", split_from)? })
}

fn split_from(value: &Value) -> Result<SplitEntry, String> {
    let fields = Fields::of(value, "split")?;
    Ok(SplitEntry {
        name: fields.text("name")?,
        position: fields.bytes("position", POSITION_BYTES_MAX)?,
        greatest: fields.time("greatest")?,
        ended: fields
            .get("ended")?
            .as_bool()
            .ok_or("'ended' of split is neither true nor false")?,
    })
}

fn sink_from(value: &Value) -> Result<SinkEntry, String> {
    let fields = Fields::of(value, "sink")?;
    Ok(SinkEntry {
        id: fields.text("id")?,
        parts: fields.list("parts", part_from)?,
        // The first records did not have it.
        mark: fields.option("mark").map(mark_from).transpose()?,
    })
}

fn mark_from(value: &Value) -> Result<[u64; 2], String> {
    match value.as_array().map(Vec::as_slice) {
        Some([first, second]) => first.as_u64().zip(second.as_u64()).map(<[u64; 2]>::from),
        _ => None,
    }
    .ok_or_else(|| "'mark' of sink is not two numbers".to_owned())
}

fn part_from(value: &Value) -> Result<StagedPart, String> {
    let fields = Fields::of(value, "part")?;
    Ok(StagedPart {
        part: fields.small("part")?,
        staged: fields.bytes("staged", STAGED_BYTES_MAX)?,
    })
}

/// The fields of an object, by name.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// The name of the object, for messages.
    what: &'static str,
}

impl<'a> Fields<'a> {
    fn of(value: &'a Value, what: &'static str) -> Result<Self, String> {
        let object = value.as_object().ok_or_else(|| format!("a {what} is no object"))?;
        Ok(Self { object, what })
    }

    fn get(&self, name: &str) -> Result<&'a Value, String> {
        self.object.get(name).ok_or_else(|| format!("'{name}' of {} is missing", self.what))
    }

    /// A field that may be missing or null.
    fn option(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, is: &str) -> String {
        format!("'{name}' of {} is {is}", self.what)
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        self.get(name)?.as_u64().ok_or_else(|| self.wrong(name, "no number from 0 on"))
    }

    fn small(&self, name: &str) -> Result<u32, String> {
        u32::try_from(self.number(name)?).map_err(|_| self.wrong(name, "more than 32 bits"))
    }

    fn time(&self, name: &str) -> Result<Option<i64>, String> {
        let time = |value: &Value| value.as_i64().ok_or_else(|| self.wrong(name, "no time"));
        self.option(name).map(time).transpose()
    }

    fn text(&self, name: &str) -> Result<String, String> {
        let text = self.get(name)?.as_str().ok_or_else(|| self.wrong(name, "no text"))?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(self.wrong(name, &format!("longer than {TEXT_BYTES_MAX} bytes")));
        }
        Ok(text.to_owned())
    }

    fn bytes(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        let digits = self.get(name)?.as_str().ok_or_else(|| self.wrong(name, "no text"))?;
        if digits.len() > 2 * bytes_max {
            return Err(self.wrong(name, &format!("longer than {bytes_max} bytes")));
        }
        bytes_of(digits).ok_or_else(|| self.wrong(name, "no hexadecimal number"))
    }

    fn list<T>(&self, name: &str, one: fn(&Value) -> Result<T, String>) -> Result<Vec<T>, String> {
        let list = self.get(name)?.as_array().ok_or_else(|| self.wrong(name, "no list"))?;
        if list.len() > ENTRIES_MAX {
            return Err(self.wrong(name, &format!("longer than {ENTRIES_MAX} entries")));
        }
        list.iter().map(one).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}
