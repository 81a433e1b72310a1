//! What is told of how much was put into connections, between looks at them.

use std::collections::BTreeMap;

use fabric::pulse::{ConnectionWatch, Count, Name, entries};

/// Hears and looks as the bytes say: an odd byte is the length of a note, twice and one, and the
/// note follows it; another one is a look at as many connections as its next two bits say, and of
/// each follow the bytes that came, and whether more wait. Gives how many were given up.
///
/// # Panics
/// When one is given up that has all that was told of it, or of which more waits.
pub fn read(mut bytes: &[u8]) -> usize {
    let mut watch = ConnectionWatch::default();
    let (mut told, mut given_up) = (BTreeMap::<Name, u64>::new(), 0);
    while let Some((&what, rest)) = bytes.split_first() {
        if what & 1 == 1 {
            let (note, rest) = rest.split_at(rest.len().min(usize::from(what >> 1)));
            for (name, sent) in entries(note) {
                watch.announce(name, sent);
                let most = told.entry(name).or_default();
                *most = sent.max(*most);
            }
            bytes = rest;
            continue;
        }
        let (mut counts, mut left) = (Vec::new(), rest);
        for number in 0..what >> 1 & 3 {
            let Some(([received @ .., unread], behind)) = left.split_first_chunk::<9>() else {
                break;
            };
            let received = received.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
            let (name, unread) = ([number; 16], unread & 1 == 1);
            counts.push(Count { name, sent: 0, received, unread });
            left = behind;
        }
        for (name, missing) in watch.look(&counts) {
            let count = counts.iter().find(|count| count.name == name).expect("one of these");
            let most = told.get(&name).copied().unwrap_or(0);
            assert!(!count.unread && missing > 0 && missing <= most - count.received);
            given_up += 1;
        }
        bytes = left;
    }
    given_up
}
