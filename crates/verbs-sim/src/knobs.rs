//! Faults and options of the device, read from `MILLSTREAM_VERBS_SIM` when the library is opened:
//! `key=value` pairs with commas.

/// See the fields.
#[derive(Debug, Clone)]
pub(crate) struct Knobs {
    /// Chooses among all that may happen next.
    pub(crate) seed: u64,
    /// The bytes of a write appear in order, and the device says so.
    pub(crate) in_order: bool,
    /// The device carries immediate data.
    pub(crate) immediate: bool,
    /// Bytes that a request carries.
    pub(crate) inline_max: u32,
    /// The request, counted over the whole device from one, at which its queue pair breaks.
    pub(crate) fail_at: u64,
    /// One request of this number breaks its queue pair; 0 for never.
    pub(crate) fail_every: u64,
    /// Bytes that can be registered.
    pub(crate) pin_max: u64,
    /// Of a thousand copies of a datagram, how many get lost.
    pub(crate) lost: u32,
    /// Of a thousand copies that do not, how many come twice.
    pub(crate) repeated: u32,
    /// A notice does not wait for the writes before it: breaks the contract on purpose.
    pub(crate) break_notify: bool,
    /// Writes under way land even after their region was taken away from the device, for as long as
    /// it is mapped as far as the device knows: breaks the contract on purpose.
    pub(crate) break_revoke: bool,
}

impl Knobs {
    /// # Panics
    /// At anything that is not a knob: a test that misspells one would test nothing.
    pub(crate) fn from_env() -> Self {
        let mut knobs = Self {
            seed: 1,
            in_order: false,
            immediate: true,
            inline_max: 220,
            fail_at: 0,
            fail_every: 0,
            pin_max: u64::MAX,
            lost: 100,
            repeated: 50,
            break_notify: false,
            break_revoke: false,
        };
        let text = std::env::var("MILLSTREAM_VERBS_SIM").unwrap_or_default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, "1"));
            let value: u64 = value.parse().unwrap_or_else(|_| panic!("{pair}: not a number"));
            match key {
                "seed" => knobs.seed = value,
                "in_order" => knobs.in_order = value != 0,
                "immediate" => knobs.immediate = value != 0,
                "inline" => knobs.inline_max = value as u32,
                "fail_at" => knobs.fail_at = value,
                "fail_every" => knobs.fail_every = value,
                "pin_max" => knobs.pin_max = value,
                "lost" => knobs.lost = value as u32,
                "repeated" => knobs.repeated = value as u32,
                "break_notify" => knobs.break_notify = value != 0,
                "break_revoke" => knobs.break_revoke = value != 0,
                _ => panic!("there is no knob {key}"),
            }
        }
        knobs
    }
}

/// A generator that needs no crate.
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// A number below `n`, which is not zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 1) as usize % n
    }
}
