//! One check of the contract of [`Store`], which the tests of each implementation call.

use std::sync::Arc;
use std::thread;

use bytes::Bytes;

use crate::error::StoreError;
use crate::store::{Created, ObjectName, Store};

/// Threads that create one name at a time.
const RIVALS: usize = 4;
/// Names that they create.
const RACES: usize = 20;

/// Bytes of a large piece of an object: more than a part of an upload.
const PIECE: usize = 9 << 20;

/// Checks the promises of a store that is empty below the job `conformance`.
///
/// # Errors
/// When a call fails.
///
/// # Panics
/// When a promise is broken.
pub fn check(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    let name = |name: &str| ObjectName::new(format!("conformance/{name}")).expect("a name");
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    let a = name("chain/a");
    assert_eq!(store.get(&a, None)?, None);
    assert_eq!(store.create(&a, &first)?, Created::New);
    assert_eq!(store.create(&a, &second)?, Created::Exists);
    assert_eq!(store.create(&a, &first)?, Created::Exists);
    assert_eq!(store.get(&a, None)?, Some(first.clone()));

    store.put(&a, &[second.clone(), Bytes::new(), first.clone()])?;
    assert_eq!(store.get(&a, None)?, Some(Bytes::from_static(b"secondfirst")));
    assert_eq!(store.get(&a, Some(6..9))?, Some(Bytes::from_static(b"fir")));
    assert_eq!(store.get(&a, Some(9..100))?, Some(Bytes::from_static(b"st")));
    assert_eq!(store.get(&a, Some(0..0))?, Some(Bytes::new()));

    check_writers(store, &a)?;
    store.put(&a, &[second.clone(), first.clone()])?;

    store.put(&name("chain.b"), &[])?;
    store.create(&name("seg/c"), &first)?;
    let named = |prefix: Option<&ObjectName>| -> Result<Vec<_>, StoreError> {
        let listed = store.list(prefix)?.into_iter();
        Ok(listed.map(|object| (object.name.as_str().to_owned(), object.bytes)).collect())
    };
    let of = |name: &str, bytes| (format!("conformance/{name}"), bytes);
    assert_eq!(named(Some(&name("chain")))?, [of("chain/a", 11)]);
    let job = ObjectName::new("conformance").expect("a name");
    let all = [of("chain.b", 0), of("chain/a", 11), of("seg/c", 5)];
    assert_eq!(named(Some(&job))?, all);
    assert_eq!(named(None)?, all);
    assert_eq!(store.children(None)?, ["conformance"]);
    assert_eq!(store.children(Some(&job))?, ["chain", "chain.b", "seg"]);
    assert_eq!(named(Some(&name("none")))?, []);

    for object in all {
        let object = ObjectName::new(object.0).expect("a name");
        store.delete(&object)?;
        assert_eq!(store.get(&object, None)?, None);
        store.delete(&object)?;
    }
    check_rivals(store)?;
    assert_eq!(named(None)?, []);
    store.remove_folder(&job)?;
    assert_eq!(store.children(None)?, Vec::<String>::new());
    Ok(())
}

/// An object that is written piece by piece is seen when it is finished, and not before.
fn check_writers(store: &Arc<dyn Store>, name: &ObjectName) -> Result<(), StoreError> {
    let before = store.get(name, None)?;
    let mut given_up = store.writer(name)?;
    given_up.write(Bytes::from_static(b"not this"))?;
    drop(given_up);
    assert_eq!(store.get(name, None)?, before);

    let pieces: [Bytes; 3] = [vec![1; PIECE], vec![2; 3], vec![3; PIECE]].map(Bytes::from);
    let mut writer = store.writer(name)?;
    for piece in &pieces {
        writer.write(piece.clone())?;
        assert_eq!(store.get(name, None)?, before);
    }
    writer.finish()?;
    assert!(store.get(name, None)? == Some(pieces.concat().into()), "all pieces, in their order");
    assert_eq!(store.list(None)?.len(), 1, "nothing is left beside it");
    store.writer(name)?.finish()?;
    assert_eq!(store.get(name, None)?, Some(Bytes::new()));
    Ok(())
}

/// Of several that create one name, one succeeds, and the object is its own.
fn check_rivals(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    for race in 0..RACES {
        let name = ObjectName::new(format!("conformance/race/{race}")).expect("a name");
        let rivals: Vec<_> = (0..RIVALS)
            .map(|rival| {
                let (store, name) = (Arc::clone(store), name.clone());
                thread::spawn(move || store.create(&name, &Bytes::from(vec![rival as u8; 100])))
            })
            .collect();
        let mut winners = Vec::new();
        for (rival, thread) in rivals.into_iter().enumerate() {
            if thread.join().expect("a rival")? == Created::New {
                winners.push(rival);
            }
        }
        let [winner] = winners[..] else { panic!("{winners:?} have created {name}") };
        assert_eq!(store.get(&name, None)?, Some(Bytes::from(vec![winner as u8; 100])));
        store.delete(&name)?;
    }
    Ok(())
}
