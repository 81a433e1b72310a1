//! Operators of streams that go by the time of rows, and what stands beside them: each gives the
//! rows of the same written in SQL, on every layout.

use millstream::stream::{Agg, JoinKind, Order, Shift, Stream, TimeRange, Window};
use millstream::{Error, Session};
use tests::rows::sorted;

use super::{LAYOUTS, SECOND, session, sql};

const VIEWS: &str = "
  CREATE TABLE rates (
    ts TIMESTAMP(3), ad_id BIGINT, price BIGINT, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
  ) WITH (
    'connector' = 'generator', 'rows' = '5000', 'interval' = '20ms', 'disorder' = '1500ms',
    'flows' = '3', 'fields.ad_id.max' = '99', 'fields.price.max' = '99'
  );
  CREATE VIEW views AS SELECT ts, ad_id, price FROM events WHERE event_type = 'view';
  CREATE VIEW clicks AS SELECT ts, ad_id, price FROM events WHERE event_type = 'click'";

/// Events of one kind, as the views have them.
fn of_kind(session: &mut Session, kind: &'static str) -> Result<Stream, Error> {
    let of =
        move |row: millstream::stream::Row<'_>| Ok(row.get::<&str>("event_type")? == Some(kind));
    Ok(session.table("events")?.filter_rows(of).select(&["ts", "ad_id", "price"])?)
}

/// The columns of both sides.
const BOTH: &str = "v.ts, v.ad_id, v.price, c.ts, c.ad_id, c.price";

#[test]
fn rows_near_each_other_meet_as_in_sql() -> Result<(), Error> {
    let on = "v.ad_id = c.ad_id
              AND c.ts BETWEEN v.ts - INTERVAL '0.5' SECOND AND v.ts + INTERVAL '1' SECOND";
    let kinds = [
        (JoinKind::Inner, format!("SELECT {BOTH} FROM views v JOIN clicks c ON {on}")),
        (JoinKind::Left, format!("SELECT {BOTH} FROM views v LEFT JOIN clicks c ON {on}")),
        (JoinKind::Right, format!("SELECT {BOTH} FROM views v RIGHT JOIN clicks c ON {on}")),
        (JoinKind::Full, format!("SELECT {BOTH} FROM views v FULL JOIN clicks c ON {on}")),
        (
            JoinKind::LeftSemi,
            format!("SELECT * FROM views v WHERE EXISTS (SELECT 1 FROM clicks c WHERE {on})"),
        ),
        (
            JoinKind::RightAnti,
            format!("SELECT * FROM clicks c WHERE NOT EXISTS (SELECT 1 FROM views v WHERE {on})"),
        ),
    ];
    for layout in LAYOUTS {
        let mut session = session(layout);
        session.sql(VIEWS)?;
        for (kind, query) in &kinds {
            let expected = sql(&mut session, query);
            assert!(expected.len() > 1_000, "{kind:?}");
            let near = TimeRange::between(Shift::Earlier(SECOND / 2), Shift::Later(SECOND));
            let views = of_kind(&mut session, "view")?.key_by(&["ad_id"])?;
            let clicks = of_kind(&mut session, "click")?.key_by(&["ad_id"])?;
            let joined = views.join_near(clicks, near, *kind)?;
            assert_eq!(joined.time().is_some(), *kind != JoinKind::Full);
            assert_eq!(sorted(&session.rows(&joined)?), expected, "{kind:?} on {layout:?}");
        }
        // Windows follow over the time of a join.
        let near = TimeRange::within(SECOND / 10);
        let views = of_kind(&mut session, "view")?.key_by(&["ad_id"])?;
        let clicks = of_kind(&mut session, "click")?.key_by(&["ad_id"])?;
        let met = views.join_near(clicks, near, JoinKind::Inner)?.key_by(&["ad_id"])?;
        let counts = met.window(&Window::tumble(10 * SECOND))?.aggregate(&[Agg::count("n")])?;
        let counts = counts.select(&["ad_id", "n", "window_start"])?;
        let expected = sql(
            &mut session,
            "CREATE VIEW met AS SELECT v.ts AS ts, v.ad_id AS ad_id FROM views v JOIN clicks c
               ON v.ad_id = c.ad_id AND c.ts BETWEEN v.ts - INTERVAL '0.1' SECOND
                                                 AND v.ts + INTERVAL '0.1' SECOND;
             SELECT ad_id, count(*), window_start
             FROM TUMBLE(TABLE met, DESCRIPTOR(ts), INTERVAL '10' SECOND)
             GROUP BY ad_id, window_start, window_end",
        );
        assert_eq!(sorted(&session.rows(&counts)?), expected, "{layout:?}");
    }
    Ok(())
}

#[test]
fn rows_meet_the_latest_version_as_in_sql() -> Result<(), Error> {
    for layout in LAYOUTS {
        let mut session = session(layout);
        session.sql(VIEWS)?;
        for (kind, join) in [(JoinKind::Inner, "ASOF JOIN"), (JoinKind::Left, "ASOF LEFT JOIN")] {
            for order in [">=", ">"] {
                let expected = sql(
                    &mut session,
                    &format!(
                        "SELECT {BOTH} FROM views v {join} rates c
                         ON v.ad_id = c.ad_id AND v.ts {order} c.ts"
                    ),
                );
                assert!(expected.len() > 5_000, "{kind:?}: {}", expected.len());
                let views = of_kind(&mut session, "view")?.key_by(&["ad_id"])?;
                let rates = session.table("rates")?.key_by(&["ad_id"])?;
                let joined = match order {
                    ">" => views.join_earlier(rates, kind)?,
                    _ => views.join_latest(rates, kind)?,
                };
                assert_eq!(joined.time(), Some("ts"));
                let rows = sorted(&session.rows(&joined)?);
                assert_eq!(rows, expected, "{order} {kind:?} on {layout:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn sessions_are_those_of_sql() -> Result<(), Error> {
    let from = "SESSION(TABLE events PARTITION BY ad_id, DESCRIPTOR(ts), INTERVAL '0.3' SECOND)";
    for layout in LAYOUTS {
        let mut session = session(layout);
        let expected = sql(
            &mut session,
            &format!(
                "SELECT ad_id, count(*), sum(price), window_start, window_end FROM {from}
                 GROUP BY ad_id, window_start, window_end"
            ),
        );
        assert!(expected.len() > 5_000, "{}", expected.len());
        let gap = 3 * SECOND / 10;
        let visits = session.table("events")?.key_by(&["ad_id"])?.window(&Window::session(gap))?;
        let visits = visits.aggregate(&[Agg::count("n"), Agg::sum("price", "total")])?;
        let visits = visits.select(&["ad_id", "n", "total", "window_start", "window_end"])?;
        assert_eq!(sorted(&session.rows(&visits)?), expected, "{layout:?}");

        // Rows with their session go on: the two highest of each.
        let expected = sql(
            &mut session,
            &format!(
                "SELECT ts, ad_id, price, window_start, window_end, place FROM (
                   SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, ad_id
                     ORDER BY price DESC NULLS LAST, ts) AS place FROM {from})
                 WHERE place <= 2"
            ),
        );
        let rows = session.table("events")?.select(&["ts", "ad_id", "price"])?;
        let rows = rows.key_by(&["ad_id"])?.in_sessions(gap)?.key_by(&["ad_id"])?;
        let order = [Order::descending("price"), Order::ascending("ts")];
        let highest = rows.top(2, &order, "place")?;
        let kept = ["ts", "ad_id", "price", "window_start", "window_end", "place"];
        assert_eq!(sorted(&session.rows(&highest.select(&kept)?)?), expected, "{layout:?}");
    }
    Ok(())
}

#[test]
fn the_first_rows_of_windows_are_those_of_sql() -> Result<(), Error> {
    for layout in LAYOUTS {
        let mut session = session(layout);
        for (keys, by) in [(&["ad_id"][..], ", ad_id"), (&[], "")] {
            let expected = sql(
                &mut session,
                &format!(
                    "SELECT ts, ad_id, price, window_start, place FROM (
                       SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end{by}
                         ORDER BY price DESC NULLS LAST, ts) AS place
                       FROM TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '10' SECOND))
                     WHERE place <= 3"
                ),
            );
            assert!(expected.len() >= 30, "{}", expected.len());
            let rows = session.table("events")?.in_windows(&Window::tumble(10 * SECOND))?;
            let order = [Order::descending("price"), Order::ascending("ts")];
            let first = rows.key_by(keys)?.top(3, &order, "place")?;
            assert_eq!(first.time(), Some("window_time"));
            let first = first.select(&["ts", "ad_id", "price", "window_start", "place"])?;
            assert_eq!(sorted(&session.rows(&first)?), expected, "{keys:?} on {layout:?}");
        }
    }
    Ok(())
}

#[test]
fn rows_without_a_partner_in_a_table_are_those_of_sql() -> Result<(), Error> {
    let table = "(SELECT ad_id, campaign_id FROM ads WHERE campaign_id < 5) AS a";
    let kinds = [
        (
            JoinKind::Left,
            format!(
                "SELECT e.ts, e.ad_id, e.price, a.campaign_id FROM events e
                 LEFT JOIN {table} ON e.ad_id = a.ad_id"
            ),
        ),
        (
            JoinKind::LeftSemi,
            format!(
                "SELECT ts, ad_id, price FROM events e
                 WHERE EXISTS (SELECT 1 FROM {table} WHERE e.ad_id = a.ad_id)"
            ),
        ),
        (
            JoinKind::LeftAnti,
            format!(
                "SELECT ts, ad_id, price FROM events e
                 WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE e.ad_id = a.ad_id)"
            ),
        ),
    ];
    for layout in LAYOUTS {
        let mut session = session(layout);
        for (kind, query) in &kinds {
            let expected = sql(&mut session, query);
            assert!(expected.len() > 5_000, "{kind:?}: {}", expected.len());
            let few = session.table("ads")?;
            let few =
                few.filter_rows(|row| Ok(row.get::<i64>("campaign_id")?.is_some_and(|c| c < 5)));
            let events = session.table("events")?.select(&["ts", "ad_id", "price"])?;
            let joined = events.lookup_as(&few, &[("ad_id", "ad_id")], *kind)?;
            assert_eq!(joined.time(), Some("ts"));
            assert_eq!(sorted(&session.rows(&joined)?), expected, "{kind:?} on {layout:?}");
        }
    }
    Ok(())
}

#[test]
fn an_aggregate_in_two_stages_gives_the_rows_of_one() -> Result<(), Error> {
    for layout in LAYOUTS {
        let mut session = session(layout);
        session.sql("CREATE TABLE none WITH ('connector' = 'blackhole')")?;
        let expected = sql(
            &mut session,
            "SELECT ad_id, count(*), count(price), sum(price), min(price), max(price),
                    window_start, window_end
             FROM HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '6' SECOND)
             GROUP BY ad_id, window_start, window_end",
        );
        let aggregates = [
            Agg::count("n"),
            Agg::count_of("price", "values"),
            Agg::sum("price", "total"),
            Agg::min("price", "least"),
            Agg::reduce::<arrow::datatypes::Int64Type>("price", "most", i64::max),
        ];
        let columns = ["ad_id", "n", "values", "total", "least", "most"];
        let columns = [&columns[..], &["window_start", "window_end"]].concat();
        let windowed = |session: &mut Session| {
            let events = session.table("events")?.key_by(&["ad_id"])?;
            Ok::<_, Error>(events.window(&Window::hop(6 * SECOND, 2 * SECOND))?)
        };
        let one = windowed(&mut session)?.aggregate(&aggregates)?.select(&columns)?;
        let two = windowed(&mut session)?.local_global(&aggregates)?.select(&columns)?;
        assert_eq!(sorted(&session.rows(&one)?), expected, "{layout:?}");
        assert_eq!(sorted(&session.rows(&two)?), expected, "{layout:?}");
        let output = session.insert("none", two)?;
        let explained = session.job(&[output])?.explain();
        for part in [
            "WindowAggregate local [1]",
            "─ forward: ",
            "WindowAggregate global [2]",
            "─ shuffle(ad_id, window_start, window_end): ",
        ] {
            assert!(explained.contains(part), "{part}: {explained}");
        }
        // Windows behind it are over its windows.
        let all = windowed(&mut session)?.local_global(&[Agg::count("n")])?;
        let all = all.key_by(&[])?.same_windows()?.local_global(&[Agg::sum("n", "n")])?;
        let expected = sql(
            &mut session,
            "SELECT count(*), window_start FROM
               HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '6' SECOND)
             GROUP BY window_start, window_end",
        );
        let rows = session.rows(&all.select(&["n", "window_start"])?)?;
        assert_eq!(sorted(&rows), expected, "{layout:?}");
    }
    Ok(())
}

#[test]
fn what_goes_by_time_is_refused_with_what_to_write_instead() -> Result<(), Error> {
    let mut session = session((1, 1));
    let events = session.table("events")?;
    let keyed = || events.clone().key_by(&["ad_id"]);
    let timeless = events.clone().select(&["ad_id"])?.key_by(&["ad_id"])?;
    let refusals = [
        (
            keyed()?.join_near(timeless.clone(), TimeRange::within(SECOND), JoinKind::Inner),
            "EventTime",
        ),
        (timeless.clone().in_sessions(SECOND), "EventTime"),
        (
            keyed()?.join_near(
                keyed()?,
                TimeRange::between(Shift::Later(SECOND), Shift::Earlier(SECOND)),
                JoinKind::Inner,
            ),
            "the earlier one first",
        ),
        (keyed()?.join_latest(keyed()?, JoinKind::Full), "JoinKind::Left"),
        (
            events.clone().key_by(&[])?.join_latest(events.clone().key_by(&[])?, JoinKind::Inner),
            "key_by",
        ),
        (events.clone().in_windows(&Window::session(SECOND)), "in_sessions"),
        (keyed()?.top(1, &[Order::ascending("price")], "place"), "in_windows"),
        (
            keyed()?.window(&Window::tumble(SECOND))?.local_global(&[Agg::avg("price", "mean")]),
            "sums and counts",
        ),
        (keyed()?.window(&Window::session(SECOND))?.local_global(&[Agg::count("n")]), "one stage"),
        (
            events.clone().lookup_as(&session.table("ads")?, &[("ad_id", "ad_id")], JoinKind::Full),
            "JoinKind::Left",
        ),
    ];
    for (at, (refused, hint)) in refusals.into_iter().enumerate() {
        let refused = refused.err().unwrap_or_else(|| panic!("{at}: it is taken"));
        let found = refused.hint().unwrap_or_default();
        assert!(found.contains(hint), "{at}: {refused}: {found}");
    }
    Ok(())
}
