//! Applies every rule to this checkout.

use tidy::tree::expect_none;
use tidy::{
    Finding, Tree, bounds, circles, layers, links, mechanisms, messages, source, suites, words,
};

fn check(rule: &str, find: fn(&Tree) -> Vec<Finding>) {
    let tree = Tree::of_checkout().expect("the checkout is readable");
    assert!(tree.files.len() > 50, "only {} files were found", tree.files.len());
    expect_none(rule, &find(&tree));
}

#[test]
fn crates_depend_downwards_only() {
    check("layers", layers::forbidden_edges);
}

#[test]
fn modules_import_without_circles() {
    check("circles", circles::circles);
}

#[test]
fn files_are_short() {
    check("file length", source::long_files);
}

#[test]
fn lines_are_short() {
    check("line length", source::long_lines);
}

#[test]
fn modules_say_what_they_are_for() {
    check("module heads", source::headless);
}

#[test]
fn every_suite_is_in_a_test_program() {
    check("suites", suites::outside_the_programs);
}

#[test]
fn nothing_is_left_unfinished() {
    check("unfinished work", source::unfinished);
}

#[test]
fn unsafe_stays_where_memory_is_shared() {
    check("unsafe", source::stray_unsafe);
}

#[test]
fn no_path_of_one_machine() {
    check("machine paths", source::machine_paths);
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    check("links", links::broken);
}

#[test]
fn every_page_is_in_the_book() {
    check("the book's table of contents", links::outside_the_book);
}

#[test]
fn each_mechanism_of_the_papers_says_what_there_is_of_it() {
    check("mechanisms", mechanisms::untold);
}

#[test]
fn bounds_that_the_pages_name_are_constants_of_that_value() {
    check("bounds", bounds::astray);
}

#[test]
fn things_have_the_words_of_the_field() {
    check("own words", words::own_words);
}

#[test]
fn a_type_has_a_name_of_its_own() {
    check("names of types", words::shared_type_names);
}

#[test]
fn a_bool_is_tested_by_if() {
    check("matches on bools", words::matched_bools);
}

#[test]
fn messages_have_the_words_of_the_field() {
    check("words of messages", messages::in_literals);
}

#[test]
fn pages_have_the_words_of_the_field() {
    check("words of pages", messages::in_pages);
}
