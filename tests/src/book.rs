//! The book: its pages, and their examples run as a reader would run them.
//!
//! A fenced block is an example by its language; a comment right before it may say more.
//!
//! | block | what is done with it |
//! |---|---|
//! | `sql` | runs in the page's session: one worker, the page's own directory |
//! | `text` right behind `sql` | is what the session says: rows, late and bad rows, or the error |
//! | `console` | what follows `$ ` runs in `sh`; the lines below are what it prints, all of it |
//! | after `<!-- file: NAME -->` | is written to that file of the page's directory |
//! | after `<!-- not run: WHY -->` | is passed over |
//! | the comment `<!-- before: SQL -->` | runs in the session, and nothing of it is shown |
//!
//! In what is shown, a line `…` stands for any lines and `…` within a line for any text. Other
//! `text` is a picture; `rust` is left to the test that compares it with what is compiled.

use std::io::{self, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use millstream::{Error, Report, RunOptions, Session};

use crate::command::{Dir, program, root};

/// Seconds after which a command is taken for stuck; nothing is measured by it.
const PATIENCE: &str = "120";

/// Stands for what is left out.
const ELLIPSIS: &str = "…";

/// The pages that `docs/SUMMARY.md` names, in their order.
pub fn pages(summary: &str) -> Vec<String> {
    let targets = summary.split("](").skip(1);
    targets.filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// What became of the examples of a page.
#[derive(Debug)]
pub struct Run {
    /// The page with what was really shown in place of what differed.
    pub page: String,
    /// What differs or failed, by place.
    pub faults: Vec<String>,
    /// Examples that ran.
    pub examples: usize,
}

/// Runs the examples of a page.
///
/// The session reads and writes relative to the working directory of this process, which is the
/// page's meanwhile: no other test of the same program may go by relative paths.
pub fn run(name: &str, page: &str) -> Run {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = Dir::new("book");
    std::env::set_current_dir(dir.path()).expect("the page's directory");
    let lines: Vec<&str> = page.split_inclusive('\n').collect();
    let mut reader = Reader::new(name, &dir);
    let things = things(&lines);
    for (at, thing) in things.iter().enumerate() {
        match thing {
            Thing::Before(sql, line) => {
                if let Err(text) = reader.say(sql) {
                    reader.fault(*line, &format!("fails:\n{text}"));
                }
            }
            Thing::Block(block) => {
                let shown = match things.get(at + 1) {
                    Some(Thing::Block(next)) if next.follows && next.language == "text" => {
                        Some(next)
                    }
                    _ => None,
                };
                reader.example(&lines, block, shown);
            }
        }
    }
    std::env::set_current_dir(root()).expect("the checkout");
    let Reader { faults, examples, mut changes, .. } = reader;
    let mut lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
    changes.sort_by_key(|(range, _)| range.start);
    for (range, text) in changes.into_iter().rev() {
        lines.splice(range, [text]);
    }
    Run { page: lines.concat(), faults, examples }
}

/// What a page has for the reader's machine.
enum Thing<'a> {
    /// SQL of a comment, and its line.
    Before(String, usize),
    Block(Block<'a>),
}

/// A fenced block.
struct Block<'a> {
    language: &'a str,
    /// The comment before it: its kind and what it says.
    note: Option<(&'a str, &'a str)>,
    /// Its lines, without the fences, from 0.
    inner: Range<usize>,
    /// Whether nothing stands between it and the block before.
    follows: bool,
}

fn things<'a>(lines: &[&'a str]) -> Vec<Thing<'a>> {
    let mut things = Vec::new();
    let (mut note, mut follows) = (None, false);
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim();
        if let Some(language) = line.strip_prefix("```") {
            let end = (at + 1..lines.len()).find(|i| lines[*i].trim() == "```");
            let inner = at + 1..end.unwrap_or(lines.len());
            at = inner.end;
            things.push(Thing::Block(Block { language, note: note.take(), inner, follows }));
            follows = true;
        } else if line.starts_with("<!-- before:") {
            let end = (at..lines.len()).find(|i| lines[*i].contains("-->"));
            let end = end.unwrap_or(lines.len() - 1);
            let text = lines[at..=end].concat();
            let sql = text.trim().trim_start_matches("<!-- before:").trim_end_matches("-->");
            things.push(Thing::Before(sql.to_owned(), at));
            at = end;
        } else if line.starts_with("<!-- file:") || line.starts_with("<!-- not run:") {
            let inner = line.trim_start_matches("<!--").trim_end_matches("-->");
            note = inner.split_once(':').map(|(kind, text)| (kind.trim(), text.trim()));
        } else if !line.is_empty() {
            (note, follows) = (None, false);
        }
        at += 1;
    }
    things
}

/// Who reads the page and tries what it shows.
struct Reader<'a> {
    name: &'a str,
    dir: &'a Dir,
    session: Session,
    /// What the session has written.
    shown: Written,
    faults: Vec<String>,
    examples: usize,
    /// Lines of the page, and what should stand there.
    changes: Vec<(Range<usize>, String)>,
}

impl<'a> Reader<'a> {
    fn new(name: &'a str, dir: &'a Dir) -> Self {
        let shown = Written::default();
        let session = Session::builder().output("stdout", shown.clone()).build();
        let session = session.expect("a session");
        Self { name, dir, session, shown, faults: Vec::new(), examples: 0, changes: Vec::new() }
    }

    fn fault(&mut self, line: usize, what: &str) {
        self.faults.push(format!("docs/{}:{}: {what}", self.name, line + 1));
    }

    /// Tries a block; `shown` is the block that tells what it gives.
    fn example(&mut self, lines: &[&str], block: &Block<'_>, shown: Option<&Block<'_>>) {
        let Block { language, note, inner, .. } = block;
        let text = lines[inner.clone()].concat();
        match (note, *language) {
            (Some(("file", name)), _) => self.dir.write(name, &text),
            (Some((_, why)), _) if !why.is_empty() => return,
            (_, "sql") => {
                let said = self.say(&text);
                match (shown, said) {
                    (Some(shown), Ok(text) | Err(text)) => {
                        let expected = lines[shown.inner.clone()].concat();
                        self.compare(shown.inner.clone(), &expected, &text);
                    }
                    (None, Err(text)) => self.fault(inner.start, &format!("fails:\n{text}")),
                    (None, Ok(_)) => {}
                }
            }
            (_, "console") => self.console(inner, &text),
            (_, "text" | "rust") => return,
            // The tests of the package run that page.
            (_, "python") if self.name == "python.md" => return,
            (_, other) => self.fault(inner.start, &format!("nobody runs a block of '{other}'")),
        }
        self.examples += 1;
    }

    /// Says SQL to the session: what it shows, or its error.
    fn say(&mut self, sql: &str) -> Result<String, String> {
        let ran = self.session.sql(sql).and_then(|script| script.run(&RunOptions::default()));
        let rows = self.shown.take();
        match ran {
            Ok(report) => Ok(rows + &lost(&report)),
            Err(Error::Sql(errors)) => {
                let one = |error: &millstream::Diagnostic| error.render("example.sql", sql, false);
                Err(rows + &errors.iter().map(one).collect::<Vec<_>>().join("\n"))
            }
            Err(error) => {
                let hint = error.hint().map(|hint| format!("  = hint: {hint}\n"));
                Err(format!("{rows}error: {error}\n{}", hint.unwrap_or_default()))
            }
        }
    }

    /// Runs the commands of a block, and compares what each of them prints.
    fn console(&mut self, inner: &Range<usize>, text: &str) {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut at = 0;
        while at < lines.len() {
            let Some(first) = lines[at].strip_prefix("$ ") else {
                self.fault(inner.start + at, "a command begins with '$ '");
                return;
            };
            let mut command = first.to_owned();
            at += 1;
            while let Some(more) = lines.get(at).and_then(|line| line.strip_prefix("> ")) {
                command += more;
                at += 1;
            }
            let from = at;
            while lines.get(at).is_some_and(|line| !line.starts_with("$ ")) {
                at += 1;
            }
            let expected = lines[from..at].concat();
            let printed = self.shell(&command);
            self.compare(inner.start + from..inner.start + at, &expected, &printed);
        }
    }

    /// What a command prints on both streams, as before a terminal.
    fn shell(&self, command: &str) -> String {
        let program = program();
        let mut path = program.parent().expect("a directory").as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let output = Command::new("timeout")
            .args([PATIENCE, "sh", "-c", &format!("exec 2>&1\n{command}")])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env("PATH", path)
            .env("LC_ALL", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env("XDG_STATE_HOME", self.dir.path())
            .env_remove("MILLSTREAM_LOG")
            .output()
            .expect("timeout(1) of coreutils starts sh");
        let text = String::from_utf8_lossy(&output.stdout);
        // How a run goes is told every five seconds, where a machine is that slow.
        let lines = text.split_inclusive('\n');
        lines.filter(|line| !(line.contains(" rows in (") && line.contains("/s), "))).collect()
    }

    fn compare(&mut self, at: Range<usize>, expected: &str, shown: &str) {
        let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let (expected, shown) = (trimmed(expected), trimmed(shown));
        let pattern: Vec<&str> = expected.lines().collect();
        if matches(&pattern, &shown.lines().collect::<Vec<_>>()) {
            return;
        }
        self.fault(at.start, &format!("shows\n{shown}\nand not\n{expected}"));
        let shown: String = shown.lines().map(|line| without_time(line) + "\n").collect();
        self.changes.push((at, shown));
    }
}

/// Rows that are not in the result, as the command line tells of them.
fn lost(report: &Report) -> String {
    let rows = |n: u64| if n == 1 { "1 row".to_owned() } else { format!("{n} rows") };
    let mut text = String::new();
    if report.total.late > 0 {
        text += &format!("{} late and dropped\n", rows(report.total.late));
    }
    if report.bad > 0 {
        text += &format!("{} could not be read\n", rows(report.bad));
    }
    text
}

/// The closing line of a run without what differs each time.
fn without_time(line: &str) -> String {
    let Some((rows, rest)) = line.split_once(" out in ") else { return line.to_owned() };
    let Some((_, rest)) = rest.split_once(" rows/s)") else { return line.to_owned() };
    format!("{rows} out in {ELLIPSIS} ({ELLIPSIS} rows/s){rest}")
}

/// Whether lines are what the pattern says.
fn matches(pattern: &[&str], lines: &[&str]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first.trim() == ELLIPSIS => {
            (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..]))
        }
        Some((first, rest)) => match lines.split_first() {
            Some((line, others)) => line_matches(first, line) && matches(rest, others),
            None => false,
        },
    }
}

/// Whether a line is what the pattern says: its pieces in their order, the ends at the ends.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((head, rest)) = pattern.split_once(ELLIPSIS) else { return pattern == line };
    let Some(mut line) = line.strip_prefix(head) else { return false };
    let mut pieces: Vec<&str> = rest.split(ELLIPSIS).collect();
    let tail = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = line.find(piece) else { return false };
        line = &line[at + piece.len()..];
    }
    line.ends_with(tail)
}

/// What a session writes, kept.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
