//! Tests of the search on graphs without plans.

use super::*;

/// Relations with their rows, and edges between them with the share of pairs that match.
struct Graph {
    rows: Vec<f64>,
    edges: Vec<(usize, usize, f64)>,
}

impl Relations for Graph {
    fn count(&self) -> usize {
        self.rows.len()
    }

    fn beside(&self, set: Set) -> Set {
        let has = |at: usize| set & (1 << at) != 0;
        let each = self.edges.iter();
        each.fold(0, |all, &(a, b, _)| {
            all | if has(a) { 1 << b } else { 0 } | if has(b) { 1 << a } else { 0 }
        })
    }

    fn rows(&self, set: Set) -> f64 {
        let has = |at: usize| set & (1 << at) != 0;
        let rows: f64 =
            self.rows.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, rows)| rows).product();
        let inside = self.edges.iter().filter(|(a, b, _)| has(*a) && has(*b));
        rows * inside.map(|(_, _, share)| share).product::<f64>()
    }

    fn width(&self, set: Set) -> f64 {
        f64::from(set.count_ones()) * 8.0
    }

    fn workers(&self) -> u32 {
        2
    }
}

/// A generator of pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % end
    }
}

/// A connected graph: a tree of edges, and some more.
fn random(seed: u64) -> Graph {
    let mut numbers = Numbers(seed);
    let count = 1 + numbers.below(15) as usize;
    let rows = (0..count).map(|_| 10f64.powi(numbers.below(7) as i32) + 1.0).collect();
    let mut edges = vec![];
    for at in 1..count {
        let others = 1 + numbers.below(2);
        for _ in 0..others {
            let other = numbers.below(at as u64) as usize;
            edges.push((other, at, 1.0 / (10f64.powi(numbers.below(6) as i32))));
        }
    }
    Graph { rows, edges }
}

/// The least cost of any order of a set without a cross product.
fn least(graph: &Graph, set: Set) -> Option<f64> {
    if set.count_ones() == 1 {
        return Some(0.0);
    }
    let mut found: Option<f64> = None;
    let mut side = (set - 1) & set;
    while side > 0 {
        let other = set ^ side;
        if graph.beside(side) & other != 0
            && let Some((one, rest)) = least(graph, side).zip(least(graph, other))
        {
            let cost = one + rest + cost_of_join(graph, [side, other]);
            found = Some(found.map_or(cost, |known| known.min(cost)));
        }
        side = (side - 1) & set;
    }
    found
}

/// An order of relations in which each has an edge with one before it, by their numbers.
fn written(graph: &Graph) -> JoinTree {
    JoinTree::of_sequence(&(0..graph.count()).collect::<Vec<_>>()).expect("there is one")
}

#[test]
fn an_order_has_all_relations_and_no_cross_product_and_costs_no_more_than_another() {
    for seed in 0..200 {
        let graph = random(seed);
        let all = (1 << graph.count()) - 1;
        let order = best(&graph, &[]).expect("an order");
        assert_eq!(order.tree.set(), all, "seed {seed}");
        assert!(order.tree.is_connected(&graph), "seed {seed}: {:?}", order.tree);
        let near = |a: f64, b: f64| (a - b).abs() <= a.max(b) * 1e-9;
        assert!(near(order.cost, cost(&graph, &order.tree)), "seed {seed}");
        if graph.count() <= EXHAUSTIVE_MAX {
            let given = cost(&graph, &written(&graph));
            assert!(order.cost <= given * (1.0 + 1e-9), "seed {seed}: {} {given}", order.cost);
        }
        if graph.count() <= 6 {
            let least = least(&graph, all).expect("it is connected");
            assert!(near(order.cost, least), "seed {seed}: {} {least}", order.cost);
        }
        let again = best(&graph, &[]).expect("an order");
        assert_eq!((order.tree, order.looked_at), (again.tree, again.looked_at));
    }
}

/// A star: the facts, and dimensions of which a share of the keys is left.
fn star(facts: f64, dimensions: &[(f64, f64)]) -> Graph {
    let keys = dimensions.iter().map(|(keys, share)| keys * share);
    let rows = [facts].into_iter().chain(keys).collect();
    let edges = dimensions.iter().enumerate().map(|(at, (keys, _))| (0, at + 1, 1.0 / keys));
    Graph { rows, edges: edges.collect() }
}

/// The builds of a spine, in the order in which they are probed.
fn builds(tree: &JoinTree) -> Vec<usize> {
    match tree {
        JoinTree::Relation(_) => vec![],
        JoinTree::Join(probe, build) => {
            let JoinTree::Relation(at) = build.as_ref() else {
                panic!("{tree:?} has a bushy side")
            };
            builds(probe).into_iter().chain([*at]).collect()
        }
    }
}

#[test]
fn of_a_star_the_facts_are_probed_and_what_drops_most_comes_first() {
    // A tenth is left by the first dimension, a hundredth by the second, all by the third.
    let graph = star(6e6, &[(2_000.0, 0.1), (200_000.0, 0.01), (2_500.0, 1.0)]);
    let order = best(&graph, &[]).expect("an order");
    assert_eq!(builds(&order.tree), [2, 1, 3]);
}

#[test]
fn of_a_snowflake_small_sides_are_joined_before_they_are_built() {
    // Facts 0, orders 1, customers 2 of which few are left: orders shrink before they are built.
    let graph = Graph {
        rows: vec![6e6, 1.5e6, 1_500.0],
        edges: vec![(0, 1, 1.0 / 1.5e6), (1, 2, 1.0 / 150_000.0)],
    };
    let order = best(&graph, &[]).expect("an order");
    let relation = |at| Box::new(JoinTree::Relation(at));
    let orders = Box::new(JoinTree::Join(relation(1), relation(2)));
    assert_eq!(order.tree, JoinTree::Join(relation(0), orders));
}

#[test]
fn many_relations_are_joined_greedily() {
    let share = |at: u8| 1.0 - f64::from(at) / 100.0;
    let dimensions: Vec<(f64, f64)> = (1..30).map(|at| (1000.0, share(at))).collect();
    let order = best(&star(1e6, &dimensions), &[]).expect("an order");
    // The last dimension has the fewest keys left.
    assert_eq!(builds(&order.tree), (1..30).rev().collect::<Vec<_>>());
    assert!(order.looked_at < 1_000, "{}", order.looked_at);
    assert!(best(&star(1.0, &vec![(1.0, 1.0); RELATIONS_MAX]), &[]).is_none());
}

#[test]
fn what_leads_comes_first_and_the_others_by_cost() {
    let graph = star(6e6, &[(2_000.0, 0.1), (200_000.0, 0.01), (2_500.0, 1.0)]);
    let order = best(&graph, &[3, 0]).expect("an order");
    let relation = |at| Box::new(JoinTree::Relation(at));
    let first = JoinTree::Join(relation(3), relation(0));
    let second = JoinTree::Join(Box::new(first), relation(2));
    assert_eq!(order.tree, JoinTree::Join(Box::new(second), relation(1)));
}

#[test]
fn a_cross_product_is_made_when_nothing_else_is_left() {
    let graph = Graph { rows: vec![10.0, 1e4, 1.0, 1e3], edges: vec![(0, 1, 0.1), (2, 3, 1.0)] };
    let order = best(&graph, &[]).expect("an order");
    assert!(!order.tree.is_connected(&graph));
    let relation = |at| Box::new(JoinTree::Relation(at));
    let [large, small] =
        [JoinTree::Join(relation(1), relation(0)), JoinTree::Join(relation(3), relation(2))];
    assert_eq!(order.tree, JoinTree::Join(Box::new(large), Box::new(small)));
}
