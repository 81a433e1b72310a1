#!/usr/bin/env python3
"""Writes the files of this directory by the encoders of others.

    python3 -m venv v && v/bin/pip install fastavro==1.13.1 cramjam backports.zstd protobuf grpcio-tools
    v/bin/python make.py

The tests know the rows: what is here is the same for each of them.
"""
import datetime as dt
import decimal
import io
import json
import os
import struct
import subprocess
import sys

import fastavro
from fastavro import schemaless_writer, writer

HERE = os.path.dirname(os.path.abspath(__file__))
UTC = dt.timezone.utc


def path(name):
    return os.path.join(HERE, name)


def write(name, data):
    with open(path(name), "wb") as file:
        file.write(data)


ROWS = {
    "type": "record", "name": "Row", "namespace": "org.example", "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": ["null", "int"]},
        {"name": "name", "type": ["string", "null"]},
        {"name": "is", "type": "boolean"},
        {"name": "near", "type": "float"},
        {"name": "far", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "at_us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal",
                                   "precision": 12, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "place", "type": ["null", {"type": "record", "name": "Place", "fields": [
            {"name": "x", "type": "double"},
            {"name": "kinds", "type": {"type": "array", "items": "Color"}}]}]},
        {"name": "odd", "type": ["null", "int", "string"]},
        {"name": "next", "type": ["null", "Row"]},
    ]}


def row(i):
    day = dt.date(2024, 1, 31) + dt.timedelta(days=i)
    return {
        "id": i * 10**15 - 3,
        "small": None if i % 3 == 1 else i - 5,
        "name": None if i % 4 == 2 else "ü" * (i % 3) + f"n{i}",
        "is": i % 2 == 0,
        "near": i / 2,
        "far": -i * 1e-7,
        "raw": bytes(range(i % 5)),
        "four": struct.pack(">I", i),
        "color": "RED" if i % 2 else "GREEN",
        "day": day,
        "clock": dt.time(1, 2, 3, i),
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, 1000 * i, UTC),
        "at_us": None if i == 0 else dt.datetime(2024, 2, 29, 12, 0, 0, i, UTC),
        "price": decimal.Decimal(i * 12345 - 30000).scaleb(-2),
        "tags": [None if k % 2 else f"t{k}" for k in range(i % 4)],
        "counts": {f"k{k}": k - i for k in range(i % 3)},
        "place": None if i % 5 == 4 else {"x": i + 0.25, "kinds": ["GREEN"] * (i % 3)},
        "odd": [None, 7, "seven"][i % 3],
        "next": None if i % 2 else dict(row(1), id=i) if i else None,
    }


def avro():
    schema = fastavro.parse_schema(ROWS)
    rows = [row(i) for i in range(12)]
    for codec in ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]:
        out = io.BytesIO()
        # Some blocks of some rows.
        writer(out, schema, rows, codec=codec, sync_interval=200, sync_marker=b"0123456789abcdef")
        write(f"rows.{codec}.avro", out.getvalue())
    datums = []
    for each in rows:
        out = io.BytesIO()
        schemaless_writer(out, schema, each)
        datums.append(out.getvalue())
    lines = [{"id": each["id"], "datum": datum.hex()} for each, datum in zip(rows, datums)]
    write("rows.datums.json", ("\n".join(map(json.dumps, lines)) + "\n").encode())
    read = [field["name"] for field in ROWS["fields"] if field["name"] not in ("odd", "next")]
    lines = ["|".join(shown(each[name]) for name in read) for each in rows]
    write("rows.txt", ("\n".join(lines) + "\n").encode())
    write("rows.avsc", json.dumps(ROWS, indent=1).encode() + b"\n")


def shown(value):
    """A value as the tests show it."""
    if value is None:
        return ""
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        value = value.replace(tzinfo=None)
        return value.isoformat(timespec="milliseconds" if value.microsecond % 1000 == 0
                               else "microseconds") if value.microsecond else value.isoformat()
    if isinstance(value, dt.time):
        return value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e-0", "e-")
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    return str(value)


PROTO = '''
syntax = "proto3";
package org.example;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

message Other { int32 nothing = 1; }

message Event {
  enum Color { UNKNOWN = 0; RED = 1; GREEN = 2; }
  message Place {
    double x = 1;
    repeated string kinds = 2;
    optional Event inner = 3;
  }
  int64 id = 1;
  optional int32 small = 2;
  string name = 3;
  bool is = 4;
  float near = 5;
  double far = 6;
  bytes raw = 7;
  uint32 u32 = 8;
  uint64 u64 = 9;
  sint32 s32 = 10;
  fixed64 f64 = 11;
  sfixed32 sf32 = 12;
  Color color = 13;
  repeated int32 numbers = 14;
  repeated Place places = 15;
  map<string, int64> counts = 16;
  Place place = 17;
  google.protobuf.Timestamp at = 18;
  google.protobuf.StringValue wrapped = 19;
  oneof one { string text = 20; int32 number = 21; }
  string unread = 100;
}
'''


def proto():
    write("event.proto", PROTO.lstrip().encode())
    run = [sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}", "--include_imports",
           f"--descriptor_set_out={path('event.desc')}", "--python_out=/tmp", path("event.proto")]
    subprocess.run(run, check=True)
    sys.path.insert(0, "/tmp")
    import event_pb2
    lines, texts = [], []
    for i in range(8):
        event = event_pb2.Event(id=i * 10**15 - 3, name="ü" * (i % 3), near=i / 2, raw=bytes(range(i)))
        setattr(event, "is", i % 2 == 0)
        if i % 3 != 1:
            event.small = i - 2
        event.far = -i * 1e-7
        event.u32, event.u64 = 2**32 - 1 - i, 2**63 - 1 - i
        event.s32, event.f64, event.sf32 = -i, i, -i * 7
        event.color = i % 4
        event.numbers.extend(range(i))
        for k in range(i % 3):
            event.places.add(x=k + 0.5, kinds=[f"k{k}"] * k)
        for k in range(i % 3):
            event.counts[f"c{k}"] = k - i
        if i % 4:
            event.place.x = i
            event.place.inner.id = 5
        if i % 2:
            event.at.seconds, event.at.nanos = i - 3, 1_500_000 * i
        if i % 3 == 0:
            event.wrapped.value = f"w{i}"
        if i % 3 == 1:
            event.number = i
        if i % 3 == 2:
            event.text = "t"
        event.unread = "x" * i
        texts.append("|".join(map(shown, [
            event.id, event.small if event.HasField("small") else None, event.name,
            getattr(event, "is"), event.near, event.far, event.raw, event.u32, event.u64,
            event.s32, event.f64, event.sf32,
            ["UNKNOWN", "RED", "GREEN", "3"][event.color],
            list(event.numbers) or None,
            [{"x": place.x, "kinds": list(place.kinds) or None} for place in event.places] or None,
            dict(sorted(event.counts.items())) or None,
            {"x": event.place.x, "inner": {"id": 5}} if event.HasField("place") else None,
            dt.datetime(1970, 1, 1) + dt.timedelta(seconds=event.at.seconds,
                                                   microseconds=event.at.nanos // 1000)
            if event.HasField("at") else None,
            event.wrapped.value if event.HasField("wrapped") else None,
            event.text if event.HasField("text") else None,
            event.number if event.HasField("number") else None,
        ])))
        lines.append({"id": event.id, "message": event.SerializeToString(True).hex()})
    write("events.txt", ("\n".join(texts) + "\n").encode())
    write("events.json", ("\n".join(map(json.dumps, lines)) + "\n").encode())


avro()
proto()
