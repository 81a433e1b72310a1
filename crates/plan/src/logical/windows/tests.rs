use super::*;
use crate::text::diagnostics::Place;
use crate::text::syntax::split;

fn rewritten(sql: &str) -> std::result::Result<String, String> {
    let tokens = split(sql).expect("tokens");
    let (tokens, _) = rewrite(&tokens[0]).map_err(|e| e.message)?;
    Ok(tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" "))
}

#[test]
fn all_ways_to_write_a_window_are_the_same() {
    let plain = rewritten("SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)");
    let plain = plain.expect("a window");
    assert!(plain.contains("__window ( \"ts\" , 'TUMBLE' , '3600000000000'"), "{plain}");
    for sql in [
        "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '60' MINUTES))",
        "SELECT * FROM tumble(SIZE => INTERVAL '1' HOUR, DATA => TABLE t, \
         TIMECOL => DESCRIPTOR(ts))",
        "SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '0' HOUR)",
    ] {
        assert_eq!(rewritten(sql).as_ref(), Ok(&plain), "{sql}");
    }
}

#[test]
fn the_keys_of_sessions_stand_beside_them() {
    let plain = "SELECT * FROM SESSION(TABLE t PARTITION BY a, b, DESCRIPTOR(ts), \
                 INTERVAL '10' MINUTE)";
    let plain = rewritten(plain).expect("a window");
    let call = "__window ( \"ts\" , 'SESSION' , '600000000000' , '600000000000' , '0' ) , \"a\" , \
                \"b\" FROM t";
    assert!(plain.contains(call), "{plain}");
    for sql in [
        "SELECT * FROM TABLE(SESSION(TABLE t PARTITION BY (a, b), DESCRIPTOR(ts), \
         INTERVAL '600' SECOND))",
        "SELECT * FROM session(GAP => INTERVAL '10' MINUTES, DATA => TABLE t PARTITION BY a, b, \
         TIMECOL => DESCRIPTOR(ts))",
        "SELECT * FROM SESSION(GAP => INTERVAL '10' MINUTES, TIMECOL => DESCRIPTOR(ts), \
         DATA => TABLE t PARTITION BY a, b)",
    ] {
        assert_eq!(rewritten(sql).as_ref(), Ok(&plain), "{sql}");
    }
    let one = rewritten("SELECT * FROM SESSION(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)");
    assert!(one.expect("a window").contains("'0' ) FROM t"));
    let none = rewritten("SELECT * FROM SESSION(TABLE t, DESCRIPTOR(ts))");
    assert_eq!(none.err().as_deref(), Some("SESSION lacks its gap"));
}

#[test]
fn a_function_of_that_name_elsewhere_is_left_alone() {
    let sql = "SELECT tumble ( 1 ) , TABLE FROM t";
    assert_eq!(rewritten(sql).as_deref(), Ok(sql));
}

#[test]
fn the_time_column_keeps_its_place() {
    let tokens = split("SELECT *\nFROM TUMBLE(TABLE t,\n DESCRIPTOR(when), INTERVAL '1' DAY)");
    let tokens = tokens.expect("tokens");
    let (tokens, sites) = rewrite(&tokens[0]).expect("a window");
    let time = tokens.iter().find(|t| t.token.to_string() == "\"when\"").expect("the column");
    assert_eq!((time.span.start.line, time.span.start.column), (3, 13));
    assert_eq!(sites[0].time.place, Place { line: 3, column: 13, length: 4 });
}
