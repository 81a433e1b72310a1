//! The days of 1992 to 1998.

/// The number of days.
pub(super) const DAYS: u64 = 2_557;

const MONTHS: [(&str, i32); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];
const WEEK: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Day {
    pub(super) year: i32,
    /// From 1 on, like the days of a month and of a year.
    pub(super) month: i32,
    pub(super) of_month: i32,
    pub(super) of_year: i32,
    /// Sunday is 0.
    pub(super) of_week: i32,
}

impl Day {
    /// The day with this number; the first is 0.
    pub(super) fn new(number: u64) -> Self {
        // The first of January 1992 was a Wednesday.
        let of_week = ((number + 3) % 7) as i32;
        let (mut year, mut rest) = (1992, number as i32);
        while rest >= days_of(year) {
            rest -= days_of(year);
            year += 1;
        }
        let (of_year, mut month) = (rest + 1, 1);
        while rest >= month_days(year, month) {
            rest -= month_days(year, month);
            month += 1;
        }
        Self { year, month, of_month: rest + 1, of_year, of_week }
    }

    /// The day as a number whose digits are the date: 19920131.
    pub(super) fn key(self) -> i32 {
        (self.year * 100 + self.month) * 100 + self.of_month
    }

    pub(super) fn month_name(self) -> &'static str {
        MONTHS[self.month as usize - 1].0
    }

    pub(super) fn week_day_name(self) -> &'static str {
        WEEK[self.of_week as usize]
    }

    pub(super) fn ends_month(self) -> bool {
        self.of_month == month_days(self.year, self.month)
    }

    pub(super) fn season(self) -> &'static str {
        match self.month {
            1..=3 => "Winter",
            4 => "Spring",
            5..=8 => "Summer",
            9 | 10 => "Fall",
            _ => "Christmas",
        }
    }
}

/// The key of the day with this number: see [`Day::key`].
pub(super) fn key_of(number: u64) -> i32 {
    Day::new(number).key()
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0
}

fn days_of(year: i32) -> i32 {
    365 + i32::from(is_leap(year))
}

fn month_days(year: i32, month: i32) -> i32 {
    MONTHS[month as usize - 1].1 + i32::from(month == 2 && is_leap(year))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!((key_of(0), key_of(59), key_of(DAYS - 1)), (19_920_101, 19_920_229, 19_981_231));
        let day = Day::new(366 + 365);
        let names = (day.month_name(), day.week_day_name(), day.season());
        assert_eq!((day.key(), names), (19_940_101, ("January", "Saturday", "Winter")));
        assert!(!day.ends_month() && Day::new(59).ends_month() && !Day::new(58).ends_month());
    }
}
