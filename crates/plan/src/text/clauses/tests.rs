use crate::catalog::Catalog;
use crate::logical::engine::Engine;
use crate::text::diagnostics::Diagnostic;
use crate::text::syntax::split;

/// The error of a query of a table `t (k, s)`.
fn refused(query: &str) -> Option<(usize, Diagnostic)> {
    let with = "WITH t AS (SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v (k, s)) ";
    let tokens = split(&format!("{with}{query}")).expect("tokens").swap_remove(0);
    let error = Engine::new().understand(&tokens, &Catalog::default()).err()?.swap_remove(0);
    Some((error.column.saturating_sub(with.len() + 1), error))
}

/// Each is refused where the first of the words between brackets stands.
#[test]
fn a_clause_that_is_not_carried_out_is_refused_where_it_stands() {
    for marked in [
        "SELECT k FROM t [PREWHERE] k > 5",
        "SELECT k FROM t [TABLESAMPLE] BERNOULLI (0)",
        "SELECT k FROM t AS x [TABLESAMPLE] (10 PERCENT)",
        "SELECT k FROM (SELECT k FROM t) [TABLESAMPLE] SYSTEM (1)",
        "SELECT k FROM t [SAMPLE] 0.1",
        "SELECT k FROM t [FINAL]",
        "SELECT x.k FROM t [ANY] JOIN t AS x ON t.k = x.k",
        "SELECT x.k FROM t [POSITIONAL] JOIN t AS x",
        "SELECT x.k FROM t [GLOBAL] JOIN t AS x ON t.k = x.k",
        "SELECT x.k FROM t AS y [STRAIGHT_JOIN] t AS x ON y.k = x.k",
        "SELECT x.k FROM t AS x [OUTER] APPLY (SELECT 1) AS y",
        "SELECT k FROM t [WITH] (NOLOCK)",
        "SELECT k FROM t [PARTITION] (p0)",
        "SELECT x.k FROM t AS x ([k] INT, s STRING)",
        "SELECT x FROM UNNEST(make_array(1, 2)) [WITH] ORDINALITY AS u (x)",
        "SELECT * FROM [generate_series](1, 3)",
        "SELECT * FROM t [PIVOT] (sum(k) FOR s IN ('a', 'b')) AS p",
        "SELECT k, count(*) FROM t GROUP BY k [WITH] TOTALS",
        "SELECT k, count(*) FROM t GROUP BY 1 [WITH] ROLLUP",
        "SELECT k, count(*) FROM t GROUP BY k [GROUPING] SETS ((k), ())",
        "SELECT k FROM t [START] WITH k = 1 CONNECT BY PRIOR k = k",
        "SELECT k FROM t [CONNECT] BY k = k",
        "SELECT * [ILIKE] 'k%' FROM t",
        "SELECT t.* [RENAME] k AS j FROM t",
        "SELECT k [INTO] x FROM t",
        "SELECT k FROM t [CLUSTER] BY k",
        "SELECT k FROM t [DISTRIBUTE] BY k",
        "SELECT k FROM t [SORT] BY k",
        "SELECT k FROM t [LATERAL] VIEW explode(k) x AS y",
        "SELECT k FROM t ORDER BY k [WITH] FILL",
        "SELECT k FROM t LIMIT 1 [BY] k",
        "SELECT k FROM t LIMIT 1 [FETCH] FIRST ROW ONLY",
        "SELECT k FROM t ORDER BY k FETCH FIRST 1 ROW [WITH] TIES",
        "SELECT k FROM t FETCH FIRST 10 [PERCENT] ROWS ONLY",
        "SELECT k FROM t UNION ALL SELECT [TOP] 1 k FROM t",
        "SELECT k FROM t EXCEPT [BY] NAME SELECT 1 AS k",
        "SELECT k FROM t [FOR] UPDATE",
        "SELECT k FROM t [FOR] JSON AUTO",
        "SELECT k FROM t [SETTINGS] max_threads = 1",
        "SELECT k FROM t [FORMAT] JSON",
        "SELECT k FROM t WHERE k IN (SELECT k FROM t [PREWHERE] k > 5)",
        "SELECT (SELECT max(k) FROM t [TABLESAMPLE] SYSTEM (1)) FROM t",
        "SELECT k FROM t [|]> DROP k",
        "SELECT k FROM t |> AGGREGATE sum(k) AS n GROUP BY k [DESC]",
    ] {
        let (at, error) = refused(&marked.replace(['[', ']'], "")).expect(marked);
        assert_eq!(Some(at), marked.find('['), "{marked}: {error:?}");
        assert!(error.length > 0 && !error.message.contains("unknown column"), "{error:?}");
    }
}

#[test]
fn what_stands_behind_a_function_is_not_passed_over() {
    for marked in [
        "SELECT upper('a') [OVER] (ORDER BY k) FROM t",
        "SELECT abs([DISTINCT] k) FROM t",
        "SELECT abs(k) [FILTER] (WHERE k > 5) FROM t",
        "SELECT upper('a') [IGNORE] NULLS FROM t",
        "SELECT row_number() [FILTER] (WHERE k > 5) OVER (ORDER BY k) FROM t",
        "SELECT sum(k) [IGNORE] NULLS OVER (ORDER BY k) FROM t",
        "SELECT quantile[(]0.5)(k) FROM t",
        "SELECT string_agg(s [SEPARATOR] ',') FROM t",
        "SELECT sum(k [LIMIT] 1) FROM t",
        "SELECT count([*] EXCLUDE k) FROM t",
        "SELECT max([*]) FROM t",
        "SELECT sum(k) OVER (ORDER BY s [RANGE] BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT [INTERVAL] '1-2' YEAR TO MONTH FROM t",
        "SELECT DATE '2024-01-01' [+] DATE '2024-01-01' FROM t",
        "SELECT CAST('2024' AS DATE [FORMAT] 'YYYY') FROM t",
        "SELECT CEIL(k[,] 1) FROM t",
        "SELECT TRIM('abca'[,] 'a', 'b') FROM t",
        "SELECT s LIKE 'a!' [ESCAPE] '!' FROM t",
        "SELECT s LIKE s [ESCAPE] '!' FROM t",
        "SELECT s [LIKE] ANY ('a', 'b') FROM t",
        "SELECT s [COLLATE] nocase FROM t",
        "SELECT s [RLIKE] 'a' FROM t",
    ] {
        let (at, error) = refused(&marked.replace(['[', ']'], "")).expect(marked);
        assert_eq!(Some(at), marked.find('['), "{marked}: {error:?}");
        assert!(!error.message.contains("Unsupported"), "{error:?}");
    }
}

#[test]
fn a_condition_is_boolean_wherever_it_stands() {
    for marked in [
        "SELECT k FROM t WHERE [1]",
        "SELECT k FROM t WHERE ([1])",
        "SELECT k FROM t WHERE k > 0 AND [1]",
        "SELECT k FROM t WHERE ['true']",
        "SELECT count(*) FROM t HAVING [1]",
        "SELECT k FROM t QUALIFY [1]",
        "SELECT x.k FROM t JOIN t AS x ON [1]",
        "SELECT count(*) FILTER (WHERE [1]) FROM t",
        "SELECT count(*) FILTER (WHERE [k]) FROM t",
        "SELECT sum(k) FILTER (WHERE [k] + 1) OVER (ORDER BY s) FROM t",
        "SELECT CASE WHEN [1] THEN 2 END FROM t",
        "SELECT CASE WHEN [k] THEN 2 END FROM t",
        "SELECT CASE WHEN k > 1 THEN 1 WHEN [s] THEN 2 END FROM t",
        "SELECT NOT [1] FROM t",
        "SELECT NOT [k] FROM t",
        "SELECT [k] AND TRUE FROM t",
        "SELECT TRUE OR [s] FROM t",
        "SELECT [k] IS TRUE FROM t",
        "SELECT k FROM t WHERE [k]",
        "SELECT k FROM t WHERE ([t].k)",
        "SELECT count(*) FROM t HAVING [count](*)",
        "SELECT k FROM t QUALIFY [row_number]() OVER (ORDER BY k)",
        "SELECT k FROM (SELECT * FROM t) WHERE EXISTS (SELECT CASE WHEN [k] THEN 1 END FROM t)",
    ] {
        let (at, error) = refused(&marked.replace(['[', ']'], "")).expect(marked);
        assert_eq!(Some(at), marked.find('['), "{marked}: {error:?}");
        assert!(error.message.contains(" BOOLEAN, and th"), "{error:?}");
        assert!(error.hint.is_some(), "{error:?}");
    }
}

#[test]
fn what_stands_behind_a_star_is_a_column_and_named_once() {
    for (marked, message) in [
        ("SELECT * REPLACE (1 AS [nope]) FROM t", "unknown column 'nope'"),
        ("SELECT t.* REPLACE (k + 1 AS k, 1 AS [K]) FROM t", "unknown column 'K'"),
        ("SELECT * EXCLUDE (s) REPLACE (1 AS [nope]) FROM t", "unknown column 'nope'"),
        ("SELECT k FROM (SELECT * REPLACE (1 AS [nope]) FROM t)", "unknown column 'nope'"),
        ("SELECT * EXCLUDE ([nope]) FROM t", "unknown column 'nope'"),
        ("SELECT * EXCEPT ([nope]) FROM t", "unknown column 'nope'"),
        ("SELECT * REPLACE (1 AS k, 2 AS [k]) FROM t", "column 'k' is named twice behind the star"),
        ("SELECT * EXCLUDE (k, [k]) FROM t", "column 'k' is named twice behind the star"),
        ("SELECT * EXCEPT (k, [k]) FROM t", "column 'k' is named twice behind the star"),
        (
            "SELECT * EXCLUDE k REPLACE (1 AS [k]) FROM t",
            "column 'k' is named twice behind the star",
        ),
        ("SELECT * EXCLUDE [(]k, s) FROM t", "no column is left of the star"),
    ] {
        let sql = marked.replace(['[', ']'], "");
        let (at, error) = refused(&sql).expect(marked);
        assert_eq!(error.message, message, "{marked}");
        // Of the last, the place is the star's.
        assert!(Some(at) == marked.find('[') || marked.contains("[(]"), "{marked}: {error:?}");
    }
}

#[test]
fn what_works_is_not_refused() {
    for sql in [
        "SELECT ALL k FROM t AS FINAL WHERE FINAL.k > 0",
        "SELECT k FROM t AS x SEMI JOIN t AS y ON x.k = y.k",
        "SELECT k FROM t AS x ANTI JOIN t AS y ON x.k = y.k",
        "SELECT k FROM t MINUS SELECT 2",
        "SELECT k FROM t UNION ALL BY NAME SELECT 1 AS k",
        "SELECT * EXCLUDE (k) FROM t",
        "SELECT * REPLACE (k + 1 AS k) FROM t",
        "SELECT t.k FROM (SELECT * REPLACE (k + 1 AS k, upper(s) AS s) FROM t) AS t ORDER BY t.s",
        "SELECT x.* REPLACE (1 AS k), t.s FROM t JOIN t AS x ON t.k = x.k WHERE NULL",
        "SELECT NULL AND TRUE FROM (WITH x AS (SELECT * REPLACE (1 AS k) FROM t) FROM t)",
        "SELECT k, count(*) FROM t GROUP BY k, s WITH CUBE",
        "SELECT TOP 1 k FROM t ORDER BY k",
        "SELECT k FROM t ORDER BY k OFFSET 1 ROW FETCH NEXT ROW ONLY",
        "SELECT DISTINCT ON (s) s, k FROM t ORDER BY s, k",
        "SELECT count(DISTINCT k) FILTER (WHERE k > 1) FROM t",
        "SELECT first_value(k) IGNORE NULLS OVER (ORDER BY k) FROM t",
        "SELECT array_agg(k ORDER BY k DESC) FROM t",
        "SELECT s LIKE 'a!_' ESCAPE '!', s LIKE '\\_' ESCAPE '' FROM t",
        "SELECT * FROM (FROM t)",
        "SELECT k FROM t |> WHERE k > 1 |> SELECT k + 1 AS j",
    ] {
        assert_eq!(refused(sql).map(|(_, error)| error), None, "{sql}");
    }
}
