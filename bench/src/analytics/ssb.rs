//! The five tables of the Star Schema Benchmark (O'Neil, O'Neil, Chen, revision 3): its columns,
//! cardinalities and distributions, so that its queries select the published share of the rows.
//! Unlike in the benchmark's own generator, each day of the seven years has the same number of
//! orders.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray};

use super::calendar::{DAYS, Day, key_of};
use super::draws::Draws;
use super::table::{Column, Table};

/// The tables.
pub(super) const TABLES: [&str; 5] = ["customer", "date", "lineorder", "part", "supplier"];

/// The five nations of each of the five regions.
const REGIONS: [(&str, [&str; 5]); 5] = [
    ("AFRICA", ["ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"]),
    ("AMERICA", ["ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"]),
    ("ASIA", ["CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"]),
    ("EUROPE", ["FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"]),
    ("MIDDLE EAST", ["EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"]),
];

const SEGMENTS: [&str; 5] = ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"];
const PRIORITIES: [&str; 5] = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECI", "5-LOW"];
const MODES: [&str; 7] = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"];
const COLORS: [&str; 12] = [
    "almond", "azure", "beige", "black", "blue", "brown", "coral", "cyan", "green", "ivory",
    "orange", "red",
];
const TYPES: [&[&str]; 3] = [
    &["ECONOMY", "LARGE", "MEDIUM", "PROMO", "SMALL", "STANDARD"],
    &["ANODIZED", "BRUSHED", "BURNISHED", "PLATED", "POLISHED"],
    &["BRASS", "COPPER", "NICKEL", "STEEL", "TIN"],
];
const CONTAINERS: [&[&str]; 2] = [
    &["JUMBO", "LG", "MED", "SM", "WRAP"],
    &["BAG", "BOX", "CAN", "CASE", "DRUM", "JAR", "PACK", "PKG"],
];

/// Orders of scale 1; an order has one to seven lines.
const ORDERS: f64 = 1_500_000.0;

fn scaled(of_one: f64, scale: f64) -> u64 {
    ((of_one * scale) as u64).max(1)
}

/// The numbers of customers, suppliers and parts.
fn counts(scale: f64) -> [u64; 3] {
    let parts = match scale {
        // The specification begins at 1.
        ..1.0 => scaled(200_000.0, scale),
        _ => 200_000 * (1 + scale.log2().floor() as u64),
    };
    [scaled(30_000.0, scale), scaled(2_000.0, scale), parts]
}

/// A table at a scale.
pub(super) fn table(name: &str, scale: f64) -> Table {
    let [customers, suppliers, parts] = counts(scale);
    match name {
        "customer" => people('c', customers, "Customer"),
        "supplier" => people('s', suppliers, "Supplier"),
        "part" => Table::rows(parts, part_columns(parts)),
        "date" => Table::rows(DAYS, date_columns()),
        _ => lineorder(scaled(ORDERS, scale), counts(scale)),
    }
}

/// Customers or suppliers.
fn people(letter: char, count: u64, kind: &'static str) -> Table {
    let base = u64::from(letter) << 8;
    let draws = move |column: u64| Draws::column(base + column);
    let place = draws(1);
    // A nation, a digit for the city.
    let at = move |row: u64| {
        let number = place.between(row, 0, 249) as usize;
        let (region, nations) = REGIONS[number / 50];
        (region, nations[number / 10 % 5], number / 10, number % 10)
    };
    let name = |column: &str| format!("{letter}_{column}");
    let key = if letter == 'c' { "custkey" } else { "suppkey" };
    let mut columns = vec![
        Column::int(name(key), [1, count as i64], |row| row as i32 + 1),
        Column::text(name("name"), move |row| format!("{kind}#{:09}", row + 1)),
        Column::text(name("address"), move |row| draws(2).text(row, 10, 25)),
        Column::text(name("city"), move |row| city(at(row).1, at(row).3)),
        Column::text(name("nation"), move |row| at(row).1.to_owned()),
        Column::text(name("region"), move |row| at(row).0.to_owned()),
        Column::text(name("phone"), move |row| {
            let part = |column, most| draws(column).between(row, most / 10 + 1, most);
            let (nation, line) = (at(row).2 + 10, [part(3, 999), part(4, 999), part(5, 9_999)]);
            format!("{nation}-{}-{}-{}", line[0], line[1], line[2])
        }),
    ];
    if letter == 'c' {
        let segment = move |row| draws(6).of(row, &SEGMENTS).to_owned();
        columns.push(Column::text(name("mktsegment"), segment));
    }
    Table::rows(count, columns)
}

/// The first nine letters of a nation and a digit.
fn city(nation: &str, digit: usize) -> String {
    format!("{nation:<9.9}{digit}")
}

fn part_columns(count: u64) -> Vec<Column> {
    let draws = |column: u64| Draws::column(0x7000 + column);
    // One of 5 manufacturers, 5 categories of each, 40 brands of each.
    let brand = move |row: u64| draws(1).between(row, 0, 999);
    let category =
        move |row: u64| format!("MFGR#{}{}", brand(row) / 200 + 1, brand(row) / 40 % 5 + 1);
    let joined = move |row: u64, words: &[&[&'static str]], first: u64| {
        let word = |(words, column): (&&[&'static str], u64)| draws(column).of(row, words);
        words.iter().zip(first..).map(word).collect::<Vec<_>>().join(" ")
    };
    vec![
        Column::int("p_partkey".into(), [1, count as i64], |row| row as i32 + 1),
        Column::text("p_name".into(), move |row| joined(row, &[&COLORS, &COLORS], 2)),
        Column::text("p_mfgr".into(), move |row| format!("MFGR#{}", brand(row) / 200 + 1)),
        Column::text("p_category".into(), category),
        Column::text("p_brand1".into(), move |row| {
            format!("{}{}", category(row), brand(row) % 40 + 1)
        }),
        Column::text("p_color".into(), move |row| draws(2).of(row, &COLORS).to_owned()),
        Column::text("p_type".into(), move |row| joined(row, &TYPES, 4)),
        Column::int("p_size".into(), [1, 50], move |row| draws(7).between(row, 1, 50) as i32),
        Column::text("p_container".into(), move |row| joined(row, &CONTAINERS, 8)),
    ]
}

fn date_columns() -> Vec<Column> {
    let number = |name: &str, range, of: fn(Day) -> i32| {
        Column::int(format!("d_{name}"), range, move |row| of(Day::new(row)))
    };
    let flag = |name: &str, of: fn(Day) -> bool| {
        Column::int(format!("d_{name}"), [0, 1], move |row| i32::from(of(Day::new(row))))
    };
    let text = |name: &str, of: fn(Day) -> String| {
        Column::text(format!("d_{name}"), move |row| of(Day::new(row)))
    };
    vec![
        number("datekey", [19_920_101, 19_981_231], |day| day.key()),
        text("date", |day| format!("{} {}, {}", day.month_name(), day.of_month, day.year)),
        text("dayofweek", |day| day.week_day_name().to_owned()),
        text("month", |day| day.month_name().to_owned()),
        number("year", [1992, 1998], |day| day.year),
        number("yearmonthnum", [199_201, 199_812], |day| day.year * 100 + day.month),
        text("yearmonth", |day| format!("{:.3}{}", day.month_name(), day.year)),
        number("daynuminweek", [1, 7], |day| day.of_week + 1),
        number("daynuminmonth", [1, 31], |day| day.of_month),
        number("daynuminyear", [1, 366], |day| day.of_year),
        number("monthnuminyear", [1, 12], |day| day.month),
        number("weeknuminyear", [1, 53], |day| (day.of_year - 1) / 7 + 1),
        text("sellingseason", |day| day.season().to_owned()),
        flag("lastdayinweekfl", |day| day.of_week == 6),
        flag("lastdayinmonthfl", Day::ends_month),
        flag("holidayfl", |day| [(1, 1), (7, 4), (12, 25)].contains(&(day.month, day.of_month))),
        flag("weekdayfl", |day| (1..=5).contains(&day.of_week)),
    ]
}

/// The columns of the lines of an order, which are numbers.
const LINE_NUMBERS: [&str; 14] = [
    "lo_orderkey",
    "lo_linenumber",
    "lo_custkey",
    "lo_partkey",
    "lo_suppkey",
    "lo_orderdate",
    "lo_shippriority",
    "lo_quantity",
    "lo_extendedprice",
    "lo_ordtotalprice",
    "lo_discount",
    "lo_revenue",
    "lo_supplycost",
    "lo_tax",
];

fn lineorder(orders: u64, counts: [u64; 3]) -> Table {
    let [customers, suppliers, parts] = counts.map(|count| count as i64);
    let dates = [19_920_101, 19_981_231];
    let range = |name: &str| match name {
        "lo_orderkey" => Some([1, orders as i64]),
        "lo_linenumber" => Some([1, 7]),
        "lo_custkey" => Some([1, customers]),
        "lo_partkey" => Some([1, parts]),
        "lo_suppkey" => Some([1, suppliers]),
        "lo_orderdate" => Some(dates),
        "lo_quantity" => Some([1, 50]),
        "lo_discount" => Some([0, 10]),
        "lo_tax" => Some([0, 8]),
        _ => None,
    };
    let mut columns: Vec<_> =
        LINE_NUMBERS.iter().map(|name| Column::declared_int(name, range(name))).collect();
    columns.insert(6, Column::declared_text("lo_orderpriority"));
    columns.push(Column::declared_int("lo_commitdate", Some(dates)));
    columns.push(Column::declared_text("lo_shipmode"));
    Table::units(orders, 4, columns, move |orders| lines(orders, counts))
}

/// The lines of some orders.
fn lines(orders: Range<u64>, [customers, suppliers, parts]: [u64; 3]) -> Vec<ArrayRef> {
    let draws = |column: u64| Draws::column(0x1000 + column);
    let (mut numbers, mut commits) = (vec![Vec::new(); LINE_NUMBERS.len()], Vec::new());
    let (mut priorities, mut modes) = (Vec::new(), Vec::new());
    for order in orders {
        let count = draws(0).between(order, 1, 7) as u64;
        let customer = draws(1).between(order, 1, customers as i64);
        let day = draws(2).between(order, 0, DAYS as i64 - 1) as u64;
        let line = |number: u64| {
            // A place for each line that there might be.
            let row = order * 8 + number;
            let part = draws(3).between(row, 1, parts as i64);
            // As in TPC-H, in cents.
            let price = 90_000 + (part / 10) % 20_001 + 100 * (part % 1_000);
            let quantity = draws(4).between(row, 1, 50);
            let (discount, tax) = (draws(5).between(row, 0, 10), draws(6).between(row, 0, 8));
            (row, part, price, quantity, discount, tax)
        };
        let total = (0..count).map(|number| {
            let (_, _, price, quantity, discount, tax) = line(number);
            price * quantity * (100 - discount) / 100 * (100 + tax) / 100
        });
        let total: i64 = total.sum();
        for number in 0..count {
            let (row, part, price, quantity, discount, tax) = line(number);
            let extended = price * quantity;
            let values = [
                order as i64 + 1,
                number as i64 + 1,
                customer,
                part,
                draws(7).between(row, 1, suppliers as i64),
                i64::from(key_of(day)),
                0,
                quantity,
                extended,
                total,
                discount,
                extended * (100 - discount) / 100,
                6 * price / 10,
                tax,
            ];
            numbers.iter_mut().zip(values).for_each(|(to, value)| to.push(value as i32));
            priorities.push(draws(8).of(order, &PRIORITIES));
            let commit = day + draws(9).between(row, 30, 90) as u64;
            commits.push(key_of(commit.min(DAYS - 1)));
            modes.push(draws(10).of(row, &MODES));
        }
    }
    let array = |values: Vec<i32>| Arc::new(Int32Array::from(values)) as ArrayRef;
    let mut columns: Vec<ArrayRef> = numbers.into_iter().map(array).collect();
    columns.insert(6, Arc::new(StringArray::from(priorities)));
    columns.push(array(commits));
    columns.push(Arc::new(StringArray::from(modes)));
    columns
}
