//! Eight tables of TPC-C, filled by the rules of its clause 4.3.3 as far as analytical queries see
//! them, with two differences. Orders were entered over the year 2013, by which the queries of the
//! paper select. Lines have an amount, and quantities other than 5, whether they were delivered or
//! not, as in a database in which terminals have entered the orders.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Int32Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, TimeUnit};

use super::draws::Draws;
use super::table::{Column, Table};

/// The tables.
pub(super) const TABLES: [&str; 8] =
    ["customer", "district", "item", "new_order", "order_line", "orders", "stock", "warehouse"];

const DISTRICTS: u64 = 10;
/// The first of January 2013 and a year, in milliseconds.
const BEGIN_MS: i64 = 1_356_998_400_000;
const YEAR_MS: i64 = 365 * 86_400_000;
/// The last three tenths of the orders of a district are not delivered yet.
const DELIVERED: f64 = 0.7;

/// The syllables of last names.
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
const CAPITALS: [char; 26] = [
    'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L', 'M', 'N', 'O', 'P', 'Q', 'R', 'S',
    'T', 'U', 'V', 'W', 'X', 'Y', 'Z',
];

/// The sizes of the tables. The scale is the number of warehouses; below 1 there is one, which is
/// smaller.
#[derive(Debug, Clone, Copy)]
struct Counts {
    warehouses: u64,
    items: u64,
    /// Customers, and orders, of a district.
    customers: u64,
}

impl Counts {
    fn new(scale: f64) -> Self {
        let part = |of_one: f64| ((of_one * scale.min(1.0)) as u64).max(1);
        let warehouses = scale.round().max(1.0) as u64;
        Self { warehouses, items: part(100_000.0), customers: part(3_000.0) }
    }

    fn districts(self) -> u64 {
        self.warehouses * DISTRICTS
    }

    /// Customers, and orders, of all districts.
    fn all(self) -> u64 {
        self.districts() * self.customers
    }

    /// Warehouse, district and number in it of a customer or an order, from 1 on.
    fn place(self, row: u64) -> [i32; 3] {
        let district = row / self.customers;
        [district / DISTRICTS + 1, district % DISTRICTS + 1, row % self.customers + 1]
            .map(|number| number as i32)
    }

    /// Orders of a district that were delivered.
    fn delivered(self) -> u64 {
        (self.customers as f64 * DELIVERED) as u64
    }

    /// The time at which an order was entered. Times increase within a district.
    fn entered_ms(self, order: u64) -> i64 {
        let between = YEAR_MS / self.customers as i64;
        let within = Draws::column(0xc000).between(order, 0, between - 1);
        BEGIN_MS + (order % self.customers) as i64 * between + within
    }

    /// The customer of an order: each has one.
    fn customer(self, order: u64) -> i32 {
        // A prime that divides no number of customers steps through all of them.
        let step =
            [1_009, 1_013, 1_019].into_iter().find(|step| !self.customers.is_multiple_of(*step));
        let begin = Draws::column(0xc001).word(order / self.customers) % self.customers;
        ((order % self.customers * step.unwrap_or(1) + begin) % self.customers) as i32 + 1
    }

    /// Lines of an order.
    fn lines(self, order: u64) -> u64 {
        Draws::column(0xc002).between(order, 5, 15) as u64
    }
}

/// A table at a scale.
pub(super) fn table(name: &str, scale: f64) -> Table {
    let counts = Counts::new(scale);
    match name {
        "customer" => Table::rows(counts.all(), customer(counts)),
        "district" => Table::rows(counts.districts(), district(counts)),
        "item" => Table::rows(counts.items, item(counts)),
        "new_order" => new_order(counts),
        "order_line" => order_line(counts),
        "orders" => Table::rows(counts.all(), orders(counts)),
        "stock" => Table::rows(counts.warehouses * counts.items, stock(counts)),
        _ => Table::rows(counts.warehouses, warehouse(counts)),
    }
}

/// The key columns of a table by district: warehouse, district, number.
fn keys(counts: Counts, names: [&str; 3]) -> [Column; 3] {
    let most = [counts.warehouses, DISTRICTS, counts.customers];
    let mut at = 0;
    names.map(|name| {
        let part = at;
        at += 1;
        let range = [1, most[part] as i64];
        Column::int(name.to_owned(), range, move |row| counts.place(row)[part])
    })
}

/// Amounts of money, in cents.
fn money(name: &str, digits: u8, draws: Draws, [least, most]: [i64; 2]) -> Column {
    Column::of(name, DataType::Decimal128(digits, 2), move |rows| {
        decimals(digits, rows.map(|row| draws.between(row, least, most)).collect())
    })
}

fn decimals(digits: u8, cents: Vec<i64>) -> ArrayRef {
    let values = Decimal128Array::from_iter_values(cents.into_iter().map(i128::from));
    Arc::new(values.with_data_type(DataType::Decimal128(digits, 2)))
}

fn times() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, None)
}

fn text(name: &str, draws: Draws, [least, most]: [i64; 2]) -> Column {
    Column::text(name.to_owned(), move |row| draws.text(row, least, most))
}

/// Name, streets, city, state and postal code.
fn address(letter: char, first: u64) -> Vec<Column> {
    let draws = move |column: u64| Draws::column(first + column);
    let name = |column: &str| format!("{letter}_{column}");
    let state = draws(3);
    vec![
        text(&name("street_1"), draws(0), [10, 20]),
        text(&name("street_2"), draws(1), [10, 20]),
        text(&name("city"), draws(2), [10, 20]),
        Column::text(name("state"), move |row| {
            [2 * row, 2 * row + 1].iter().map(|at| state.of(*at, &CAPITALS)).collect()
        }),
        Column::text(name("zip"), move |row| {
            format!("{:04}11111", draws(4).between(row, 0, 9_999))
        }),
    ]
}

/// A text, of which one of ten has the word ORIGINAL somewhere.
fn data(name: &str, first: u64) -> Column {
    let draws = move |column: u64| Draws::column(first + column);
    Column::text(name.to_owned(), move |row| {
        let mut text = draws(0).text(row, 26, 50);
        if draws(1).between(row, 0, 9) == 0 {
            let at = draws(2).between(row, 0, text.len() as i64 - 8) as usize;
            text.replace_range(at..at + 8, "ORIGINAL");
        }
        text
    })
}

fn customer(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc100 + column);
    let number = move |row: u64| counts.place(row)[2] as u64 - 1;
    let last = move |row: u64| {
        let number = if number(row) < 1_000 { number(row) } else { draws(1).word(row) % 1_000 };
        let digits = [number / 100, number / 10 % 10, number % 10];
        digits.map(|digit| SYLLABLES[digit as usize]).concat()
    };
    let [warehouse, district, key] = keys(counts, ["c_w_id", "c_d_id", "c_id"]);
    let mut columns = vec![
        key,
        district,
        warehouse,
        text("c_first", draws(2), [8, 16]),
        Column::text("c_middle".into(), |_| "OE".into()),
        Column::text("c_last".into(), last),
    ];
    columns.extend(address('c', 0xc110));
    let credit =
        move |row| draws(3).of(row, &["BC", "GC", "GC", "GC", "GC", "GC", "GC", "GC", "GC", "GC"]);
    columns.extend([
        Column::text("c_credit".into(), move |row| credit(row).to_owned()),
        money("c_discount", 4, draws(4), [0, 50]),
        money("c_balance", 12, draws(5), [-1_000, -1_000]),
        text("c_data", draws(6), [300, 500]),
    ]);
    columns
}

fn district(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc200 + column);
    let key = move |row: u64| (row % DISTRICTS) as i32 + 1;
    let of = move |row: u64| (row / DISTRICTS) as i32 + 1;
    let mut columns = vec![
        Column::int("d_id".into(), [1, DISTRICTS as i64], key),
        Column::int("d_w_id".into(), [1, counts.warehouses as i64], of),
        text("d_name", draws(0), [6, 10]),
    ];
    columns.extend(address('d', 0xc210));
    columns.push(money("d_tax", 4, draws(1), [0, 20]));
    columns
}

fn warehouse(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc300 + column);
    let key = |row: u64| row as i32 + 1;
    let mut columns = vec![
        Column::int("w_id".into(), [1, counts.warehouses as i64], key),
        text("w_name", draws(0), [6, 10]),
    ];
    columns.extend(address('w', 0xc310));
    columns.push(money("w_tax", 4, draws(1), [0, 20]));
    columns
}

fn item(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc400 + column);
    let image = move |row| draws(0).between(row, 1, 10_000) as i32;
    vec![
        Column::int("i_id".into(), [1, counts.items as i64], |row| row as i32 + 1),
        Column::int("i_im_id".into(), [1, 10_000], image),
        text("i_name", draws(1), [14, 24]),
        money("i_price", 5, draws(2), [100, 10_000]),
        data("i_data", 0xc410),
    ]
}

fn stock(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc500 + column);
    let item = move |row: u64| (row % counts.items) as i32 + 1;
    let of = move |row: u64| (row / counts.items) as i32 + 1;
    let quantity = move |row| draws(0).between(row, 10, 100) as i32;
    vec![
        Column::int("s_i_id".into(), [1, counts.items as i64], item),
        Column::int("s_w_id".into(), [1, counts.warehouses as i64], of),
        Column::int("s_quantity".into(), [10, 100], quantity),
        data("s_data", 0xc510),
    ]
}

fn orders(counts: Counts) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0xc600 + column);
    let [warehouse, district, key] = keys(counts, ["o_w_id", "o_d_id", "o_id"]);
    let lines = move |row| counts.lines(row) as i32;
    let customer = move |row| counts.customer(row);
    let carrier = move |rows: Range<u64>| {
        let carrier = |row: u64| {
            let delivered = row % counts.customers < counts.delivered();
            delivered.then(|| draws(0).between(row, 1, 10) as i32)
        };
        Arc::new(rows.map(carrier).collect::<Int32Array>()) as ArrayRef
    };
    let entered = move |rows: Range<u64>| {
        let times = rows.map(|row| counts.entered_ms(row));
        Arc::new(TimestampMillisecondArray::from_iter_values(times)) as ArrayRef
    };
    vec![
        key,
        district,
        warehouse,
        Column::int("o_c_id".into(), [1, counts.customers as i64], customer),
        Column::of("o_entry_d", times(), entered),
        Column::of("o_carrier_id", DataType::Int32, carrier),
        Column::int("o_ol_cnt".into(), [5, 15], lines),
        Column::int("o_all_local".into(), [1, 1], |_| 1),
    ]
}

/// The orders that were not delivered.
fn new_order(counts: Counts) -> Table {
    let waiting = counts.customers - counts.delivered();
    let order =
        move |row: u64| row / waiting * counts.customers + counts.delivered() + row % waiting;
    let most = [counts.customers, DISTRICTS, counts.warehouses];
    let mut columns = Vec::new();
    for (name, part, most) in
        [("no_o_id", 2, most[0]), ("no_d_id", 1, most[1]), ("no_w_id", 0, most[2])]
    {
        let key = move |row: u64| counts.place(order(row))[part];
        columns.push(Column::int(name.to_owned(), [1, most as i64], key));
    }
    Table::rows(counts.districts() * waiting, columns)
}

fn order_line(counts: Counts) -> Table {
    let int = |name: &str, most: u64| Column::declared_int(name, Some([1, most as i64]));
    let columns = vec![
        int("ol_o_id", counts.customers),
        int("ol_d_id", DISTRICTS),
        int("ol_w_id", counts.warehouses),
        int("ol_number", 15),
        int("ol_i_id", counts.items),
        int("ol_supply_w_id", counts.warehouses),
        Column::declared("ol_delivery_d", times(), None),
        int("ol_quantity", 10),
        Column::declared("ol_amount", DataType::Decimal128(6, 2), None),
        Column::declared_text("ol_dist_info"),
    ];
    Table::units(counts.all(), 10, columns, move |orders| lines(orders, counts))
}

/// The lines of some orders.
fn lines(orders: Range<u64>, counts: Counts) -> Vec<ArrayRef> {
    let draws = |column: u64| Draws::column(0xc700 + column);
    let (mut numbers, mut delivered) = (vec![Vec::new(); 7], Vec::new());
    let (mut amounts, mut infos) = (Vec::new(), Vec::new());
    for order in orders {
        let [warehouse, district, key] = counts.place(order);
        let is_delivered = order % counts.customers < counts.delivered();
        for number in 0..counts.lines(order) {
            let row = order * 16 + number;
            let values = [
                key,
                district,
                warehouse,
                number as i32 + 1,
                draws(0).between(row, 1, counts.items as i64) as i32,
                warehouse,
                draws(1).between(row, 1, 10) as i32,
            ];
            numbers.iter_mut().zip(values).for_each(|(to, value)| to.push(value));
            delivered.push(is_delivered.then(|| counts.entered_ms(order)));
            amounts.push(draws(2).between(row, 1, 999_999));
            infos.push(draws(3).text(row, 24, 24));
        }
    }
    let array = |values| Arc::new(Int32Array::from(values)) as ArrayRef;
    let mut columns: Vec<ArrayRef> = numbers.into_iter().map(array).collect();
    columns.insert(6, Arc::new(TimestampMillisecondArray::from(delivered)));
    columns.push(decimals(6, amounts));
    columns.push(Arc::new(StringArray::from(infos)));
    columns
}
