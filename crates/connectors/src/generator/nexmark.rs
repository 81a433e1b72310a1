//! NEXMark: persons sell things at auctions, others bid. Three tables over one stream of events.
//!
//! Events come in cycles of `bids : auctions : persons`, 46 : 3 : 1 unless 'proportions' says
//! otherwise (`0:4:1` for NB8 of S14): persons first, then auctions, then bids. Row `i` of a table
//! is the `i`-th event of its kind, so that the three tables, with the same options, tell one
//! story: sellers and bidders are persons that exist. What is bid for is drawn by Pareto's law from
//! 'keys' auctions whose popularity does not change (NB7 of S14; in NEXMark itself it drifts).
//! Prices, channels and addresses of pages follow the published generator.

use std::fmt::Write;

use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use dataflow::error::ConnectorError;

use super::columns::{Column, Timeline, numbers, texts, words};
use super::random::{Column as Random, Draws};
use super::{Key, Model};
use crate::options::{OptionReader, refuse};

/// The tables, in SQL.
pub(super) const TABLES: &[&str] = &["bid", "auction", "person"];

const FIRST_ID: u64 = 1_000;
/// Persons that sell and bid at a time: the latest.
const ACTIVE_PERSONS: u64 = 1_000;
const AUCTIONS: u64 = 10_000;
/// How long an auction lasts at most.
const LASTS_MS_MAX: u64 = 20_000;

const CITIES: [&str; 10] = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
];
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
const FIRST_NAMES: [&str; 10] =
    ["Ada", "Bea", "Carl", "Dora", "Emil", "Fred", "Gus", "Hanna", "Ida", "Jon"];
const LAST_NAMES: [&str; 8] = ["Abel", "Berg", "Cole", "Dahl", "Ende", "Falk", "Graf", "Holt"];
/// Every second bid comes through one of these.
const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];
/// Channels that the others come through.
const CHANNELS: u64 = 10_000;

/// How events of the three kinds alternate.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    bids: u64,
    auctions: u64,
    persons: u64,
}

impl Cycle {
    fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let text = options.text("proportions").unwrap_or("46:3:1");
        let counts: Vec<u64> =
            text.split(':').filter_map(|count| count.trim().parse().ok()).collect();
        match counts[..] {
            [bids, auctions, persons] if counts.iter().all(|count| *count <= 1_000_000) => {
                Ok(Self { bids, auctions, persons })
            }
            _ => Err(refuse(
                "proportions",
                format!("'{text}' is not three counts of bids, auctions and persons"),
                Some("write 'proportions' = '46:3:1'".into()),
            )),
        }
    }

    /// The event of row `row` of a table with `count` events in a cycle, behind `before` others.
    fn event(&self, row: u64, count: u64, before: u64) -> u64 {
        let length = self.bids + self.auctions + self.persons;
        (row / count).saturating_mul(length).saturating_add(before + row % count)
    }

    /// One of the latest persons as of an event.
    fn person(&self, event: u64, random: &Random) -> i64 {
        let length = self.bids + self.auctions + self.persons;
        let known = event / length * self.persons + (event % length).min(self.persons);
        let known = known.max(1);
        (FIRST_ID + known - 1 - random.below(event, known.min(ACTIVE_PERSONS))) as i64
    }
}

pub(super) fn model(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
) -> Result<Model, ConnectorError> {
    let cycle = Cycle::new(options)?;
    let table = options.choice("table", TABLES)?.unwrap_or(0);
    let (count, before) = match table {
        0 => (cycle.bids, cycle.persons + cycle.auctions),
        1 => (cycle.auctions, cycle.persons),
        _ => (cycle.persons, 0),
    };
    if count == 0 {
        return Err(refuse(
            "proportions",
            format!("leave no events for the table '{}'", TABLES[table]),
            Some("write 'proportions' = '46:3:1'".into()),
        ));
    }
    let event = move |row| cycle.event(row, count, before);
    let columns = match table {
        0 => bid(options, seed, timeline, cycle, event)?,
        1 => auction(seed, timeline, cycle, event),
        _ => person(seed, timeline, event),
    };
    Ok(Model { event: Box::new(event), ..Model::rows(columns) })
}

fn bid(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
    cycle: Cycle,
    event: impl Fn(u64) -> u64 + Copy + Send + Sync + 'static,
) -> Result<Vec<Column>, ConnectorError> {
    let random = |name: &str| Random::new(seed, &format!("bid.{name}"));
    let key = Key::new(options, AUCTIONS, "pareto")?;
    let keys = key.count();
    let (auction, bidder, price) = (random("auction"), random("bidder"), random("price"));
    let (channel, of, pages) = (random("channel"), random("channel"), random("url"));
    Ok(vec![
        numbers::<Int64Type>("auction", move |row| FIRST_ID as i64 + key.draw(&auction, row))
            .of(keys),
        numbers::<Int64Type>("bidder", move |row| cycle.person(event(row), &bidder)),
        numbers::<Int64Type>("price", move |row| price_of(price.unit(row))),
        texts("channel", move |row, out| channel_of(&channel, row).name(out)),
        texts("url", move |row, out| channel_of(&of, row).url(&pages, out)),
        timeline.column("date_time", event),
        filler("extra", random("extra"), 20),
    ])
}

fn auction(
    seed: u64,
    timeline: Timeline,
    cycle: Cycle,
    event: impl Fn(u64) -> u64 + Copy + Send + Sync + 'static,
) -> Vec<Column> {
    let random = |name: &str| Random::new(seed, &format!("auction.{name}"));
    let (initial, reserve, lasts) = (random("initial_bid"), random("reserve"), random("expires"));
    let (seller, category) = (random("seller"), random("category"));
    let opening = move |row| price_of(initial.unit(row));
    let ends = move |row| {
        timeline.nominal_ms(event(row)).saturating_add(1 + lasts.below(row, LASTS_MS_MAX) as i64)
    };
    let expires = numbers::<TimestampMillisecondType>("expires", ends);
    vec![
        numbers::<Int64Type>("id", |row| (FIRST_ID + row) as i64),
        filler("item_name", random("item_name"), 20),
        filler("description", random("description"), 100),
        numbers::<Int64Type>("initial_bid", opening),
        numbers::<Int64Type>("reserve", move |row| opening(row) + price_of(reserve.unit(row))),
        timeline.column("date_time", event),
        Column { is_time: true, ahead_ms: LASTS_MS_MAX as i64, ..expires },
        numbers::<Int64Type>("seller", move |row| cycle.person(event(row), &seller)),
        numbers::<Int64Type>("category", move |row| 10 + category.below(row, 5) as i64).of(5),
        filler("extra", random("extra"), 80),
    ]
}

fn person(
    seed: u64,
    timeline: Timeline,
    event: impl Fn(u64) -> u64 + Copy + Send + Sync + 'static,
) -> Vec<Column> {
    let random = |name: &str| Random::new(seed, &format!("person.{name}"));
    let (name, email, card) = (random("name"), random("email_address"), random("credit_card"));
    let (city, state) = (random("city"), random("state"));
    vec![
        numbers::<Int64Type>("id", |row| (FIRST_ID + row) as i64),
        texts("name", move |row, out| {
            let mut draws = name.draws(row);
            *out += FIRST_NAMES[draws.below(FIRST_NAMES.len() as u64) as usize];
            out.push(' ');
            *out += LAST_NAMES[draws.below(LAST_NAMES.len() as u64) as usize];
        }),
        texts("email_address", move |row, out| {
            let mut draws = email.draws(row);
            letters(&mut draws, 7, out);
            out.push('@');
            letters(&mut draws, 5, out);
            *out += ".com";
        }),
        texts("credit_card", move |row, out| {
            let mut draws = card.draws(row);
            for group in 0..4 {
                let blank = if group == 0 { "" } else { " " };
                let _ = write!(out, "{blank}{:04}", draws.below(10_000));
            }
        }),
        words("city", &CITIES, move |row| city.below(row, CITIES.len() as u64) as usize),
        words("state", &STATES, move |row| state.below(row, STATES.len() as u64) as usize),
        timeline.column("date_time", event),
        filler("extra", random("extra"), 90),
    ]
}

/// A channel that bids come through.
#[derive(Debug, Clone, Copy)]
enum Channel {
    /// One of [`HOT_CHANNELS`].
    Hot(u64),
    /// One of the other [`CHANNELS`].
    Other(u64),
}

/// The channel of a bid.
fn channel_of(random: &Random, row: u64) -> Channel {
    let mut draws = random.draws(row);
    match draws.below(2) {
        0 => Channel::Hot(draws.below(HOT_CHANNELS.len() as u64)),
        _ => Channel::Other(draws.below(CHANNELS)),
    }
}

impl Channel {
    fn name(self, out: &mut String) {
        match self {
            Self::Hot(hot) => *out += HOT_CHANNELS[hot as usize],
            Self::Other(other) => {
                let _ = write!(out, "channel-{other}");
            }
        }
    }

    /// The page of a channel: always the same one. Nine of ten pages of the other channels tell the
    /// channel's id, which is its number with the bits turned round.
    fn url(self, pages: &Random, out: &mut String) {
        let mut draws = pages.draws(match self {
            Self::Hot(hot) => CHANNELS + hot,
            Self::Other(other) => other,
        });
        *out += "https://www.nexmark.com/";
        for _ in 0..3 {
            letters(&mut draws, 5, out);
            out.push('/');
        }
        *out += "item.htm?query=1";
        if let Self::Other(other) = self
            && draws.below(10) > 0
        {
            let id = (other as i32).reverse_bits().unsigned_abs();
            let _ = write!(out, "&channel_id={id}");
        }
    }
}

/// A price in cents from 1 to 1,000,000 units of money, evenly over its orders of magnitude.
fn price_of(unit: f64) -> i64 {
    (10f64.powf(unit * 6.0) * 100.0) as i64
}

/// Text that makes a row as long as the benchmark's: `mean` letters, give or take a fifth.
fn filler(name: &str, random: Random, mean: u64) -> Column {
    texts(name, move |row, out| {
        let mut draws = random.draws(row);
        let length = mean - mean / 5 + draws.below(2 * (mean / 5) + 1);
        letters(&mut draws, length, out);
    })
}

/// Appends lower-case letters.
fn letters(draws: &mut Draws, count: u64, out: &mut String) {
    let mut bits = 0;
    for index in 0..count {
        // 26¹² < 2⁶⁴: twelve letters of one number.
        if index % 12 == 0 {
            bits = draws.bits();
        }
        out.push(char::from(b'a' + (bits % 26) as u8));
        bits /= 26;
    }
}
