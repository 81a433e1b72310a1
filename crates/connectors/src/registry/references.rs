//! A schema with those that it refers to.

use std::collections::BTreeSet;

use dataflow::error::ConnectorError;
use serde_json::Value;

use super::ask::Asked;

/// Schemas that one refers to at most, also by way of others.
const REFERENCES_MAX: usize = 64;

/// References that wait to be followed at most: those of as many schemas.
const OPEN_MAX: usize = REFERENCES_MAX * REFERENCES_MAX;

/// A schema of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisteredSchema {
    /// AVRO, PROTOBUF or JSON.
    pub(crate) kind: String,
    pub(crate) text: String,
    /// Those that it refers to, by the names that it has for them. None refers to a later one.
    pub(crate) references: Vec<(String, String)>,
}

impl RegisteredSchema {
    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        let references = self.references.iter().map(|(name, text)| name.len() + text.len());
        self.text.len() + references.sum::<usize>()
    }
}

/// Asks what a number stands for. `Err` within: why there is nothing.
pub(super) async fn schema(
    asked: &Asked,
    id: u32,
) -> Result<Result<RegisteredSchema, String>, ConnectorError> {
    let answer = match asked.get(&["schemas", "ids", &id.to_string()]).await? {
        Ok(answer) => answer,
        Err(reason) => return Ok(Err(format!("schema {id}: {reason}"))),
    };
    let unusable = |what: &str| Ok(Err(format!("schema {id}: the registry's answer has {what}")));
    let Some(text) = text_of(&answer, "schema") else { return unusable("no schema") };
    let kind = text_of(&answer, "schemaType").unwrap_or_else(|| "AVRO".into());
    let mut found = Found::default();
    // A stack of what is to be asked for, and of what was asked for and comes behind its own.
    let mut open: Vec<Open> = found.of(&answer);
    while let Some(next) = open.pop() {
        match next {
            Open::Text(name, text) => found.references.push((name, text)),
            Open::Reference { name, subject, version } => {
                // It is seen from here on, and not since it was found: another one that was found
                // behind it, and is followed first, may refer to it and must come later.
                if !found.seen.insert((name.clone(), subject.clone(), version)) {
                    continue;
                }
                if found.seen.len() > REFERENCES_MAX || open.len() > OPEN_MAX {
                    return unusable("too many references");
                }
                let path = ["subjects", &subject, "versions", &version.to_string()];
                let answer = match asked.get(&path).await? {
                    Ok(answer) => answer,
                    Err(reason) => {
                        let what = format!(
                            "schema {id}: version {version} of '{subject}', to \
                                            which it refers: {reason}"
                        );
                        return Ok(Err(what));
                    }
                };
                let Some(text) = text_of(&answer, "schema") else { return unusable("no schema") };
                open.push(Open::Text(name, text));
                open.extend(found.of(&answer));
            }
        }
    }
    Ok(Ok(RegisteredSchema { kind, text, references: found.references }))
}

enum Open {
    Reference { name: String, subject: String, version: u64 },
    Text(String, String),
}

#[derive(Default)]
struct Found {
    /// Names, subjects and versions: a schema may be referred to by several names.
    seen: BTreeSet<(String, String, u64)>,
    references: Vec<(String, String)>,
}

impl Found {
    /// The references of an answer that were not followed before.
    fn of(&self, answer: &Value) -> Vec<Open> {
        let references = answer.get("references").and_then(Value::as_array).into_iter().flatten();
        let references = references.filter_map(|reference| {
            let (name, subject) = (text_of(reference, "name")?, text_of(reference, "subject")?);
            let version = reference.get("version").and_then(Value::as_u64)?;
            let own = (name, subject, version);
            if self.seen.contains(&own) {
                return None;
            }
            let (name, subject, version) = own;
            Some(Open::Reference { name, subject, version })
        });
        references.collect()
    }
}

fn text_of(answer: &Value, key: &str) -> Option<String> {
    answer.get(key).and_then(Value::as_str).map(str::to_owned)
}
