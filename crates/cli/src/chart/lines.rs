//! Lines over a time or a number.

use unicode_width::UnicodeWidthStr;

use super::canvas::{Canvas, Dots};
use super::data::{Data, X};
use super::scale::{Scale, number, time};
use super::{Look, mark};

/// Draws it; the text ends with a line end.
pub(super) fn draw(data: &Data, look: Look) -> String {
    let points = || data.series.iter().flat_map(|series| series.points.iter().copied());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let none = (f64::INFINITY, f64::NEG_INFINITY);
        values.fold(none, |(low, high), v| (low.min(v), high.max(v)))
    };
    let (x_low, x_high) = range(&mut points().map(|(x, _)| x));
    let (y_low, y_high) = range(&mut points().map(|(_, y)| y));
    let y = Scale::around(y_low, y_high, (look.height / 4).max(2));
    let ticks: Vec<(usize, String)> =
        y.ticks().iter().map(|tick| (row_of(&y, *tick, look.height), number(*tick))).collect();
    let margin = ticks.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
    let width = look.width.saturating_sub(margin + 3).max(8);
    // Braille cannot tell series apart without colour.
    let braille = look.unicode && (look.color || data.series.len() == 1);
    let dots = if braille { Dots::Braille } else { Dots::Marks };
    let mut canvas = Canvas::new(width, look.height, dots);
    plot(data, &mut canvas, (x_low, x_high), &y);
    let mark = |series| mark(series, look.unicode);
    let mut out = legend(data, look, braille);
    let (axis, tick, corner, floor) =
        if look.unicode { ("│", "┤", "└", "─") } else { ("|", "+", "+", "-") };
    for (row, runs) in canvas.rows(mark).iter().enumerate() {
        let label = ticks.iter().find(|(at, _)| *at == row);
        let (label, side) = label.map_or(("", axis), |(_, text)| (text.as_str(), tick));
        let mut line = format!("{label:>margin$} {side}");
        for (series, text) in runs {
            match series {
                Some(series) => line += &look.paint(*series, text),
                None => line += text,
            }
        }
        out += line.trim_end();
        out.push('\n');
    }
    out += &format!("{:margin$} {corner}{}\n", "", floor.repeat(width));
    let labels = x_labels(data.shape.x, x_low, x_high, width);
    out += format!("{:margin$}  {labels}", "").trim_end();
    out.push('\n');
    out
}

/// The row, from the top, in which a value lies.
fn row_of(y: &Scale, value: f64, height: usize) -> usize {
    let from_bottom = (y.place(value) * height as f64) as usize;
    height - 1 - from_bottom.min(height - 1)
}

fn plot(data: &Data, canvas: &mut Canvas, (x_low, x_high): (f64, f64), y: &Scale) {
    let (across, up) = canvas.size();
    let x = Scale { low: x_low, high: x_high, step: 1.0 };
    let dot = |(px, py): (f64, f64)| {
        let x = (x.place(px) * (across - 1) as f64).round() as i64;
        (x, ((y.place(py) * up as f64) as i64).min(up as i64 - 1))
    };
    // The first series is drawn last, above the others.
    for (number, series) in data.series.iter().enumerate().rev() {
        let mut points = series.points.clone();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut last = None;
        for point in points.into_iter().map(dot) {
            canvas.line(last.unwrap_or(point), point, number);
            last = Some(point);
        }
    }
}

/// The names of the series, in lines that fit.
fn legend(data: &Data, look: Look, braille: bool) -> String {
    let mut lines = vec![String::new()];
    let mut room = look.width;
    let mut add = |shown: String, width: usize| {
        if width + 2 > room && room < look.width {
            lines.push(String::new());
            room = look.width;
        }
        let line = lines.len() - 1;
        lines[line] += &shown;
        lines[line] += "  ";
        room = room.saturating_sub(width + 2);
    };
    for (number, series) in data.series.iter().enumerate() {
        let sign =
            if braille { "━━".to_owned() } else { mark(number, look.unicode).to_string() };
        let name: String = series.name.chars().filter(|c| !c.is_control()).take(30).collect();
        let width = sign.width() + 1 + name.width();
        add(format!("{} {name}", look.paint(number, &sign)), width);
    }
    if data.more_series > 0 {
        let text = format!("and {} more that are not drawn", data.more_series);
        let width = text.len();
        add(text, width);
    }
    let lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n") + "\n"
}

/// The first, the middle and the last of x, as far as there is room.
fn x_labels(kind: X, low: f64, high: f64, width: usize) -> String {
    let text = |value: f64| match kind {
        X::Time => time(value, high - low),
        _ => number(value),
    };
    let (first, middle, last) = (text(low), text(low / 2.0 + high / 2.0), text(high));
    if low >= high || first.len() + last.len() + 2 > width {
        return first;
    }
    let gap = width - first.len() - last.len();
    if gap < middle.len() + 4 {
        return format!("{first}{}{last}", " ".repeat(gap));
    }
    let left =
        (width / 2).saturating_sub(middle.len() / 2 + first.len()).clamp(2, gap - middle.len() - 2);
    let right = gap - left - middle.len();
    format!("{first}{}{middle}{}{last}", " ".repeat(left), " ".repeat(right))
}
