//! The groups by which the network copies rows for every worker (I6).
//!
//! A source's rows go to one worker of each process, its agent: the one with the same place in its
//! process. So the workers with the same place are a group, and there are as many groups as a node
//! has workers.
//!
//! ```text
//!   able? name ─▶ all_gather("group") ─▶ join ─▶ all_gather("groups"): did all?
//! ```

use std::io;

use cluster::Control;
use dataflow::job::MulticastChoice;
use fabric::FabricError;
use fabric::multicast::{Group, GroupMember};

use crate::error::Error;
use crate::links::NodeLayout;
use crate::pairs::Pairs;

/// Puts each worker of this node into its group; `None` for all where the network has none. Every
/// node makes this call.
///
/// # Errors
/// When a node failed, or the groups that were asked for cannot be had.
pub(crate) fn join_groups(
    pairs: &Pairs,
    control: &Control,
    layout: NodeLayout,
    requested: MulticastChoice,
) -> Result<Vec<Option<Box<dyn GroupMember>>>, Error> {
    let none = || layout.own().map(|_| None).collect();
    let multicast = pairs.multicast(layout.rank);
    let no_name = |source: io::Error| FabricError::Connect { link: "a group".into(), source };
    let name = match multicast {
        Some(_) => Group::random().map_err(no_name)?.name().to_vec(),
        None => Vec::new(),
    };
    // The name of the first node holds, if all are able.
    let names = control.all_gather("group", name)?;
    let family = names.first().and_then(|name| name.as_slice().try_into().ok()).map(Group::new);
    let able = names.iter().all(|name| name.len() == Group::BYTES);
    let (Some(multicast), Some(family), true) = (multicast, family, able) else {
        let lacking = names.iter().position(|name| name.len() != Group::BYTES);
        return if requested == MulticastChoice::Hardware {
            Err(missing(lacking))
        } else {
            Ok(none())
        };
    };
    let joined: Result<Vec<_>, FabricError> =
        (0..layout.per_node).map(|place| multicast.join(family.branch(place))).collect();
    let all = control.all_gather("groups", vec![joined.is_ok().into()])?;
    let refused = all.iter().position(|joined| *joined != [1]);
    match (joined, refused) {
        (Ok(members), None) => Ok(members.into_iter().map(Some).collect()),
        (Err(error), _) if requested == MulticastChoice::Hardware => Err(error.into()),
        (_, refused) if requested == MulticastChoice::Hardware => Err(missing(refused)),
        (joined, _) => {
            let reason = joined.err().map(|error| error.to_string());
            tracing::warn!(reason, "the network's multicast is not used");
            Ok(none())
        }
    }
}

fn missing(rank: Option<usize>) -> Error {
    let rank = rank.unwrap_or_default();
    Error::Usage {
        message: format!(
            "millstream.multicast = 'hardware', and node {rank} cannot join a group of its network"
        ),
        hint: "multicast needs --fabric verbs over RoCE v2, which `millstream fabric info` tests; \
               'auto' takes the tree elsewhere"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use dataflow::job::Settings;

    use super::*;
    use crate::FabricKind;

    /// How many members each of four nodes over sockets has, which have no groups.
    fn over_tcp(requested: MulticastChoice) -> Vec<Result<usize, Error>> {
        let controls = cluster::in_process(4).unwrap();
        let node = |control: &Control| {
            let layout = NodeLayout { rank: control.rank(), nodes: 4, per_node: 2 };
            let settings = Settings::default();
            let pairs = Pairs::agree(FabricKind::Tcp, control, layout, &settings).unwrap();
            let joined = join_groups(&pairs, control, layout, requested);
            control.all_gather("end", Vec::new()).unwrap();
            control.close();
            joined.map(|members| members.iter().flatten().count())
        };
        std::thread::scope(|scope| {
            let nodes: Vec<_> =
                controls.iter().map(|control| scope.spawn(move || node(control))).collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    #[test]
    fn where_the_network_has_no_groups_the_tree_stays_or_the_job_does_not_start() {
        let joined = over_tcp(MulticastChoice::Auto);
        assert!(joined.iter().all(|joined| matches!(joined, Ok(0))), "{joined:?}");
        for refused in over_tcp(MulticastChoice::Hardware) {
            let text = refused.expect_err("there are no groups").to_string();
            assert!(text.contains("node 0 cannot join a group"), "{text}");
        }
    }
}
