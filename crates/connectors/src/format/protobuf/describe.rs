//! The types of messages, as files and registries describe them.

use std::collections::BTreeMap;
use std::path::Path;

use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use crate::format::typed::guarded;

/// Bytes of a file that describes messages at most.
pub(super) const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// Reads a file with a set of descriptors, as `protoc --descriptor_set_out` writes it, or a
/// `.proto` file, whose imports lie beside it.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn described(path: &str) -> Result<DescriptorPool, String> {
    let path = Path::new(path);
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > DESCRIPTION_BYTES_MAX {
        return Err(format!("it has {bytes} bytes, {DESCRIPTION_BYTES_MAX} at most"));
    }
    if path.extension().is_some_and(|extension| extension == "proto") {
        let within = path.parent().filter(|within| !within.as_os_str().is_empty());
        let within = within.unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let compiled = || protox::compile([path], [within]).map_err(|error| placed(&error, &name));
        return pool(guarded(compiled)?);
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    guarded(|| DescriptorPool::decode(bytes.as_slice()))
}

/// The error of the compiler with its line and column, as its `Debug` has them: `at 3:7: …`, and
/// with the name of the file if it is another one than `main`.
fn placed(error: &protox::Error, main: &str) -> String {
    let text = format!("{error:?}");
    let begins = |rest: &&str| rest.starts_with(|first: char| first.is_ascii_digit());
    let place = text.strip_prefix(main).and_then(|rest| rest.strip_prefix(':')).filter(begins);
    place.map_or(text.clone(), |place| format!("at {place}"))
}

fn pool(set: FileDescriptorSet) -> Result<DescriptorPool, String> {
    guarded(|| DescriptorPool::from_file_descriptor_set(set))
}

/// Texts of `.proto` files by the names by which others import them.
struct Imported(BTreeMap<String, String>);

impl FileResolver for Imported {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.0.get(name) {
            Some(text) => File::from_source(name, text),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// The name of a text that nothing imports.
const MAIN: &str = "main.proto";

/// Compiles the text of a `.proto` file. `imported` are those that it imports, by name.
///
/// # Errors
/// Why it is none.
pub(crate) fn compiled(
    text: &str,
    imported: &[(String, String)],
) -> Result<FileDescriptor, String> {
    let mut texts: BTreeMap<_, _> = imported.iter().cloned().collect();
    texts.insert(MAIN.to_owned(), text.to_owned());
    let mut resolver = ChainFileResolver::new();
    resolver.add(Imported(texts));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(false);
    guarded(|| compiler.open_file(MAIN).map(drop).map_err(|error| placed(&error, MAIN)))?;
    let pool = pool(compiler.file_descriptor_set())?;
    pool.get_file_by_name(MAIN).ok_or_else(|| "it is not among what was compiled".into())
}

/// The message of a name: with its package, or as Java has it with `$`, or the only one that is
/// called so.
pub(crate) fn message_named(pool: &DescriptorPool, name: &str) -> Option<MessageDescriptor> {
    let name = name.replace('$', ".");
    let exact = pool.get_message_by_name(&name);
    exact.or_else(|| {
        let last = name.rsplit('.').next().unwrap_or_default().to_owned();
        let mut found = pool.all_messages().filter(|message| message.name() == last);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    })
}

/// The message of a file by its place, and those of the messages that it is within.
pub(crate) fn message_at(file: &FileDescriptor, places: &[usize]) -> Option<MessageDescriptor> {
    let (first, within) = places.split_first()?;
    let mut message = file.messages().nth(*first)?;
    for place in within {
        let inner = message.child_messages().nth(*place)?;
        message = inner;
    }
    Some(message)
}
