//! The Yahoo streaming benchmark: advertisements that are seen, clicked and bought (S14, A8).
//!
//! 1,000 advertisements of 100 campaigns: the table `ad` says which belongs to which, for the
//! static join of the benchmark. In the events `campaign_id` is that join done in advance. `key` is
//! the 8-byte key of Slash's variant.

use std::fmt::Write;

use arrow::datatypes::Int64Type;
use dataflow::error::ConnectorError;

use super::columns::{Column, Timeline, numbers, texts, words};
use super::random::Column as Random;
use super::{Key, Model};
use crate::options::OptionReader;

/// The tables, in SQL.
const TABLES: &[&str] = &["event", "ad"];

const ADS: u64 = 1_000;
const ADS_PER_CAMPAIGN: i64 = 10;
const CAMPAIGNS: u64 = ADS / ADS_PER_CAMPAIGN as u64;
const USERS: u64 = 100_000;
const PAGES: u64 = 10_000;
const KEYS: u64 = 10_000_000;

pub(super) fn model(
    options: OptionReader<'_>,
    seed: u64,
    timeline: Timeline,
) -> Result<Model, ConnectorError> {
    if options.choice("table", TABLES)? == Some(1) {
        return Ok(Model { rows_max: Some(ADS), ..Model::rows(ad()) });
    }
    let random = |name: &str| Random::new(seed, name);
    let key = Key::new(options, KEYS, "uniform")?;
    let (user, page, ad, ip) =
        (random("user_id"), random("page_id"), random("ad_id"), random("ip"));
    let (ad_type, event_type, keys) = (random("ad_type"), random("event_type"), random("key"));
    let types = ["banner", "modal", "sponsored-search", "mail", "mobile"];
    let events = ["view", "click", "purchase"];
    let count = key.count();
    let id = move |row| ad.below(row, ADS) as i64;
    Ok(Model::rows(vec![
        numbers::<Int64Type>("user_id", move |row| user.below(row, USERS) as i64).of(USERS),
        numbers::<Int64Type>("page_id", move |row| page.below(row, PAGES) as i64).of(PAGES),
        numbers::<Int64Type>("ad_id", id).of(ADS),
        numbers::<Int64Type>("campaign_id", move |row| campaign(id(row))).of(CAMPAIGNS),
        words("ad_type", &types, move |row| ad_type.below(row, 5) as usize),
        words("event_type", &events, move |row| event_type.below(row, 3) as usize),
        timeline.column("event_time", |row| row),
        texts("ip", move |row, out| {
            let [a, b, c, ..] = ip.bits(row).to_le_bytes();
            let _ = write!(out, "10.{a}.{b}.{c}");
        }),
        numbers::<Int64Type>("key", move |row| key.draw(&keys, row)).of(count),
    ]))
}

/// Each advertisement with its campaign.
fn ad() -> Vec<Column> {
    let id = |row| (row % ADS) as i64;
    vec![
        numbers::<Int64Type>("ad_id", id).of(ADS),
        numbers::<Int64Type>("campaign_id", move |row| campaign(id(row))).of(CAMPAIGNS),
    ]
}

fn campaign(ad: i64) -> i64 {
    ad / ADS_PER_CAMPAIGN
}
