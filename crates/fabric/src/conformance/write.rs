//! Writes: what arrives, where, and what the sender may know of it.

use super::{Case, Rig, pattern};
use crate::{Completion, Flags, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "a write arrives whole", clause: "write", check: arrives },
    Case { name: "a write changes nothing beside its range", clause: "write", check: stays_inside },
    Case { name: "an unaligned write arrives", clause: "write", check: unaligned },
    Case { name: "an inline source may be dropped at once", clause: "write", check: inline },
];

fn arrives(rig: &mut Rig<'_>) {
    rig.a.fill(0, 4096, 1);
    let id = rig.a.write_notify(0, 8192, 4096, 7).expect("posts");
    rig.notice(7);
    assert_eq!(rig.b.get(8192, 4096), pattern(1, 4096));
    rig.local(id);
}

fn stays_inside(rig: &mut Rig<'_>) {
    rig.b.fill(0, 512, 2);
    rig.a.fill(0, 128, 3);
    rig.a.write_notify(0, 192, 128, 1).expect("posts");
    rig.notice(1);
    let mut expected = pattern(2, 512);
    expected[192..320].copy_from_slice(&pattern(3, 128));
    assert_eq!(rig.b.get(0, 512), expected);
}

fn unaligned(rig: &mut Rig<'_>) {
    for (imm, (from, to, len)) in
        [(3, 5, 1), (1, 7, 9), (6, 65, 131), (0, 1001, 777)].iter().enumerate()
    {
        rig.b.fill(0, 2048, 4);
        rig.a.fill(*from, *len, 5);
        rig.a.write_notify(*from, *to, *len, imm as u32).expect("posts");
        rig.notice(imm as u32);
        let mut expected = pattern(4, 2048);
        expected[*to..to + len].copy_from_slice(&pattern(5, *len));
        assert_eq!(rig.b.get(0, 2048), expected, "{len} bytes to {to}");
    }
}

fn inline(rig: &mut Rig<'_>) {
    let len = rig.caps().max_inline.min(64);
    let (id, dst) = (rig.a.id(), rig.a.at(64));
    let mut bytes = pattern(6, len);
    rig.a.end.write(Src::Inline(&bytes), dst, id, Flags::SIGNAL).expect("posts");
    bytes.fill(0xee);
    rig.a.notify(9).expect("posts");
    if rig.caps().publish != crate::Publish::NotifyCounted {
        rig.notice(9);
        assert_eq!(rig.b.get(64, len), pattern(6, len));
    }
    rig.until("Local", |rig| rig.a.take(&Completion::Local { id }));
}
