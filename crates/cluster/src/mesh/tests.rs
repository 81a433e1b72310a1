use super::*;

fn root(nodes: u32) -> Root {
    Root::listen(SocketAddr::from(([127, 0, 0, 1], 0)), nodes, 1, 0).unwrap()
}

#[test]
fn an_invitation_survives_the_environment() {
    let sent = Invitation { rank: 3, parent: 77, generation: 9, ..root(4).common };
    let read = Invitation::parse(&sent.encode()).unwrap();
    assert_eq!(read.encode(), sent.encode());
    assert_eq!((read.rank(), read.nodes(), read.generation()), (3, 4, 9));
}

#[test]
fn a_damaged_invitation_is_refused() {
    let good = Invitation { rank: 1, ..root(2).common }.encode();
    let fields: Vec<&str> = good.split(',').collect();
    let bad = [(0, "2"), (1, "0"), (1, "2"), (2, "99999"), (4, "nowhere"), (5, "-1"), (6, "é0")];
    for (at, value) in bad {
        let mut fields = fields.clone();
        fields[at] = value;
        assert!(Invitation::parse(&fields.join(",")).is_none(), "field {at} = {value}");
    }
    assert!(Invitation::parse(&good[..good.len() - 1]).is_none());
    assert!(Invitation::parse(&format!("{good},")).is_none());
}

#[test]
fn an_invitation_does_not_print_its_secret() {
    let invitation = Invitation { rank: 1, ..root(2).common };
    let encoded = invitation.encode();
    let token = encoded.rsplit(',').next().unwrap();
    assert!(!format!("{invitation:?}").contains(token));
}

#[test]
fn a_wrong_token_is_refused_and_the_right_one_still_joins() {
    let root = root(2);
    let right = root.invitation(1);
    let wrong = Invitation { token: JobToken::random().unwrap(), ..right.clone() };
    let later = Invitation { generation: 2, ..right.clone() };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| root.gather(None));
        // Somebody who says nothing, and somebody who speaks something else.
        let _mute = TcpStream::connect(root.common.at).unwrap();
        let mut other = TcpStream::connect(root.common.at).unwrap();
        other.write_all(&[b'x'; Hello::BYTES]).unwrap();
        for stranger in [wrong, later] {
            match stranger.join() {
                Err(ClusterError::Refused { rank: 0, reason, .. }) => {
                    assert_eq!(reason, "it belongs to another job");
                }
                result => panic!("{result:?}"),
            }
        }
        let second = right.join().unwrap();
        let first = first.join().unwrap().unwrap();
        scope.spawn(move || second.close());
        first.close();
    });
}

#[test]
fn a_port_in_use_is_named() {
    let root = root(2);
    let addr = root.common.at;
    match Root::listen(addr, 2, 1, 0) {
        Err(error @ ClusterError::PortInUse { .. }) => {
            assert_eq!(error.to_string(), format!("cannot listen on {addr}: the port is in use"));
            assert!(error.hint().unwrap().contains("--listen"));
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("two listen on {addr}"),
    }
}

#[test]
fn the_control_plane_stays_on_this_machine() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    assert!(matches!(Root::listen(everywhere, 2, 1, 0), Err(ClusterError::NotLoopback { .. })));
}

#[test]
fn the_number_of_nodes_is_bounded() {
    for nodes in [0, crate::NODES_MAX + 1] {
        assert!(matches!(in_process(nodes), Err(ClusterError::Nodes { .. })));
    }
}
