//! Dots in cells: braille has two by four of them in each, ASCII one.

/// How dots become characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dots {
    /// Eight dots a cell.
    Braille,
    /// One dot a cell, shown as the mark of its series.
    Marks,
}

/// A plot of cells. Dots have their origin at the left and at the bottom.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    dots: Dots,
    /// Per cell, from the top left: which of its dots are set, and the series that set one last.
    cells: Vec<(u8, usize)>,
}

impl Canvas {
    /// Cells across and down.
    pub(super) fn new(width: usize, height: usize, dots: Dots) -> Self {
        Self { width, height, dots, cells: vec![(0, 0); width * height] }
    }

    fn per_cell(&self) -> (usize, usize) {
        match self.dots {
            Dots::Braille => (2, 4),
            Dots::Marks => (1, 1),
        }
    }

    /// Dots across and up.
    pub(super) fn size(&self) -> (usize, usize) {
        let (across, up) = self.per_cell();
        (self.width * across, self.height * up)
    }

    /// Sets a dot; one outside is nowhere.
    pub(super) fn set(&mut self, x: i64, y: i64, series: usize) {
        let (width, height) = self.size();
        if x < 0 || y < 0 || x >= width as i64 || y >= height as i64 {
            return;
        }
        let (across, up) = self.per_cell();
        let (x, y) = (x as usize, height - 1 - y as usize);
        let bit = match self.dots {
            Dots::Marks => 0,
            // Unicode counts three rows down on the left, then on the right, then the fourth row.
            Dots::Braille => match (x % across, y % up) {
                (0, 3) => 6,
                (_, 3) => 7,
                (column, row) => column * 3 + row,
            },
        };
        let (set, owner) = &mut self.cells[y / up * self.width + x / across];
        *set |= 1 << bit;
        *owner = series;
    }

    /// A straight line of dots between two, both included.
    pub(super) fn line(&mut self, from: (i64, i64), to: (i64, i64), series: usize) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let steps = dx.abs().max(dy.abs()).max(1);
        for step in 0..=steps {
            let at =
                |from: i64, d: i64| from + (d as f64 * step as f64 / steps as f64).round() as i64;
            self.set(at(from.0, dx), at(from.1, dy), series);
        }
    }

    /// Its rows from the top: runs of characters of one series each, blanks of none.
    pub(super) fn rows(&self, mark: impl Fn(usize) -> char) -> Vec<Vec<(Option<usize>, String)>> {
        let row = |cells: &[(u8, usize)]| {
            let mut runs: Vec<(Option<usize>, String)> = Vec::new();
            for (set, owner) in cells {
                let (owner, shown) = match (set, self.dots) {
                    (0, _) => (None, ' '),
                    (set, Dots::Braille) => {
                        let code = 0x2800 + u32::from(*set);
                        (Some(*owner), char::from_u32(code).unwrap_or(' '))
                    }
                    (_, Dots::Marks) => (Some(*owner), mark(*owner)),
                };
                match runs.last_mut() {
                    Some((last, text)) if *last == owner => text.push(shown),
                    _ => runs.push((owner, shown.to_string())),
                }
            }
            runs
        };
        self.cells.chunks(self.width.max(1)).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(canvas: &Canvas) -> Vec<String> {
        let rows = canvas.rows(|series| ['*', 'o'][series]);
        rows.into_iter().map(|runs| runs.into_iter().map(|(_, text)| text).collect()).collect()
    }

    #[test]
    fn each_braille_dot_has_its_place() {
        let mut canvas = Canvas::new(1, 1, Dots::Braille);
        assert_eq!(canvas.size(), (2, 4));
        canvas.set(0, 3, 0);
        assert_eq!(shown(&canvas), ["⠁"]);
        canvas.set(1, 0, 0);
        assert_eq!(shown(&canvas), ["⢁"]);
        for (x, y) in (0..2).flat_map(|x| (0..4).map(move |y| (x, y))) {
            canvas.set(x, y, 0);
        }
        assert_eq!(shown(&canvas), ["⣿"]);
    }

    #[test]
    fn lines_join_their_ends_and_stay_inside() {
        let mut canvas = Canvas::new(4, 4, Dots::Marks);
        canvas.line((0, 0), (3, 3), 0);
        canvas.line((-5, 0), (9, 0), 1);
        assert_eq!(shown(&canvas), ["   *", "  * ", " *  ", "oooo"]);
    }
}
