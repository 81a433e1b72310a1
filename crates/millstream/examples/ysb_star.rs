//! YSB* of AIR (Figure 1) without SQL: the ratio of clicks to views of each campaign in windows of
//! ten seconds. `docs/streams.md` explains it.

use std::time::Duration;

use arrow::datatypes::DataType;
use arrow::util::pretty::pretty_format_batches;
use millstream::stream::{Agg, Columns, JoinKind, Window};
use millstream::{Error, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut session = Session::builder().workers(2).build()?;
    session.sql(
        "CREATE TABLE events (
           event_time TIMESTAMP(3), ad_id BIGINT, event_type STRING,
           WATERMARK FOR event_time AS event_time - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '30000', 'interval' = '1ms',
           'fields.ad_id.max' = '99', 'fields.event_type.kind' = 'choice',
           'fields.event_type.values' = 'view,click,purchase'
         );
         CREATE TABLE ads (ad_id BIGINT, campaign_id AS ad_id / 10) WITH (
           'connector' = 'generator', 'rows' = '100', 'fields.ad_id.kind' = 'sequence'
         )",
    )?;
    let rows = ratios(&mut session)?;
    println!("{}", pretty_format_batches(&rows)?);
    // Three windows of ten campaigns.
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 30);
    Ok(())
}

fn ratios(session: &mut Session) -> Result<Vec<arrow::record_batch::RecordBatch>, Error> {
    let ads = session.table("ads")?;
    let tagged = session.table("events")?.lookup(&ads, &[("ad_id", "ad_id")])?;
    let branches = tagged.split(&["view", "click"], |row| row.get("event_type"));

    let windows = Window::tumble(Duration::from_secs(10));
    let count = |branch: &str, name: &str| {
        let rows = branches.branch(branch)?.key_by(&["campaign_id"])?;
        let counts = rows.window(&windows)?.aggregate(&[Agg::count(name)])?;
        counts.key_by(&["campaign_id"])
    };
    let joined = count("view", "views")?.join(count("click", "clicks")?, JoinKind::Inner)?;

    let columns = Columns::of(&["campaign_id", "window_start"]).and("ratio", DataType::Float64);
    let ratios = joined.map_rows(columns, |row| {
        let (clicks, views) = (row.get::<i64>("clicks")?, row.get::<i64>("views")?);
        Ok(vec![clicks.zip(views).map(|(clicks, views)| clicks as f64 / views as f64).into()])
    })?;
    session.rows(&ratios)
}
