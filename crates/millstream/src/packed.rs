//! Numbers in as few bytes as they need, seven bits in each: nodes tell each other many counters,
//! and most of an operator's are 0.

/// Most bytes of a number.
const NUMBER_BYTES_MAX: usize = 10;

/// Appends a number: its lowest bits first, and a high bit in every byte but the last.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number off the front of what a node sent; `None` where there is none.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..NUMBER_BYTES_MAX {
        let byte = *bytes.get(at)?;
        let bits = u64::from(byte & 0x7f);
        // The last byte holds what is left of 64 bits: one.
        if at + 1 == NUMBER_BYTES_MAX && bits > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_damage_is_none() {
        let numbers = [0, 1, 127, 128, 300, 1 << 35, i64::MIN as u64, u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| put_number(&mut bytes, *number));
        let mut rest = &bytes[..];
        for number in numbers {
            assert_eq!(take_number(&mut rest), Some(number));
        }
        assert!(rest.is_empty() && take_number(&mut rest).is_none());
        assert_eq!(take_number(&mut &[0x80; 20][..]), None, "it has no end");
        let long = [&[0xff; 9][..], &[2]].concat();
        assert_eq!(take_number(&mut &long[..]), None, "65 bits");
    }
}
