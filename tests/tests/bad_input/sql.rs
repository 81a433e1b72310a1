//! Hostile SQL: planned or refused with a reason, never a panic or a hang, whatever it says and
//! however deep or long it is.

use std::fs;
use std::path::{Path, PathBuf};

use tests::cases::cases;
use tests::command::{Dir, run_sql};
use tests::random::Random;

#[path = "../../../fuzz/src/sql.rs"]
mod target;

fn corpus() -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/sql");
    let entries = fs::read_dir(directory).expect("there is a corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let text =
        |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).expect("it is read")).into_owned();
    paths.into_iter().map(|path| (path.clone(), text(&path))).collect()
}

#[test]
fn every_script_of_the_corpus_is_planned_or_refused() {
    let (mut planned, mut refused) = (0, 0);
    for (path, text) in corpus() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match target::plan(&text) {
            Ok(_) => planned += 1,
            Err(errors) => {
                refused += 1;
                assert!(!name.starts_with("good-"), "{name}: {errors} errors");
            }
        }
    }
    assert!(planned > 15 && refused > 20, "{planned} planned, {refused} refused");
}

/// The words of a script and what is between them.
fn words(text: &str) -> Vec<String> {
    let kind = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 0,
        c if c.is_whitespace() => 1,
        _ => 2,
    };
    let mut words: Vec<String> = vec![];
    let mut last = None;
    for c in text.chars() {
        match words.last_mut() {
            Some(word) if last == Some(kind(c)) && kind(c) != 2 => word.push(c),
            _ => words.push(c.to_string()),
        }
        last = Some(kind(c));
    }
    words
}

#[test]
fn scripts_with_words_out_of_place_are_planned_or_refused() {
    let corpus: Vec<Vec<String>> = corpus().iter().map(|(_, text)| words(text)).collect();
    let strange = ["'", "\"", ")", "(", ";", "NULL", "-1", "99999999999999999999", "*", "é", "\0"];
    let (mut planned, mut refused) = (0, 0);
    let mut cases = cases(400);
    for seed in &mut cases {
        let mut random = Random::new(seed + 90_000);
        let mut script = random.one_of(&corpus).clone();
        for _ in 0..1 + random.below(4) {
            if script.is_empty() {
                break;
            }
            let at = random.below(script.len() as u64) as usize;
            let elsewhere = random.below(script.len() as u64) as usize;
            let other = random.one_of(&corpus);
            match random.below(6) {
                0 => drop(script.remove(at)),
                1 => script.insert(at, script[at].clone()),
                2 => script.swap(at, elsewhere),
                3 => script.truncate(at),
                4 if !other.is_empty() => script[at] = random.one_of(other).clone(),
                _ => script.insert(at, (*random.one_of(&strange)).to_owned()),
            }
        }
        match target::plan(&script.concat()) {
            Ok(_) => planned += 1,
            Err(_) => refused += 1,
        }
    }
    cases.met(planned > 20 && refused > 100, &format!("{planned} planned, {refused} refused"));
}

/// Scripts that are deep or long; a process of its own, for a stack that overflows ends it.
#[test]
fn scripts_that_are_deep_or_long_end() {
    let again = |text: &str, times: usize| text.repeat(times);
    let scripts = [
        ("parentheses", format!("SELECT {}1{}", again("(", 20_000), again(")", 20_000))),
        ("plus", format!("SELECT 1{}", again(" + 1", 20_000))),
        ("minus", format!("SELECT {}1", again("- ", 20_000))),
        ("not", format!("SELECT {}TRUE", again("NOT ", 20_000))),
        ("and", format!("SELECT 1 AS x WHERE 1 = 1{}", again(" AND 1 = 1", 20_000))),
        ("columns", format!("SELECT 1 AS c{}", again(", 1", 20_000))),
        ("union", format!("SELECT 1 AS c{}", again(" UNION ALL SELECT 1", 3_000))),
        (
            "subqueries",
            format!("{}SELECT 1{}", again("SELECT * FROM (", 2_000), again(") AS x", 2_000)),
        ),
        (
            "case",
            format!("SELECT {}1{}", again("CASE WHEN TRUE THEN ", 5_000), again(" END", 5_000)),
        ),
        ("functions", format!("SELECT {}1{}", again("abs(", 5_000), again(")", 5_000))),
        ("arrays", format!("SELECT {}1{}", again("[", 5_000), again("]", 5_000))),
        ("name", format!("SELECT 1 AS {}", again("x", 1 << 20))),
        ("string", format!("SELECT length('{}')", again("x", 1 << 22))),
        ("statements", again("SELECT 1;", 2_000)),
        ("in", format!("SELECT 1 AS x WHERE 1 IN (0{})", again(", 2", 50_000))),
        (
            "joins",
            format!(
                "SELECT 1 AS x FROM (SELECT 1) AS a{}",
                again(" CROSS JOIN (SELECT 1) AS b", 300)
            ),
        ),
    ];
    for (name, script) in scripts {
        let dir = Dir::new("deep");
        let outcome = run_sql(&dir, &script, &["--dry-run", "--workers", "1"]);
        let code = outcome.code.unwrap_or_else(|| panic!("{name}: {}", outcome.err));
        assert!([0, 2].contains(&code), "{name} ends with {code}: {:.400}", outcome.err);
        assert!(!outcome.err.contains("panicked"), "{name}: {:.400}", outcome.err);
        assert!(code == 0 || outcome.err.starts_with("error: "), "{name}: {:.400}", outcome.err);
    }
}
