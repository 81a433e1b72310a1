//! The options behind a `*`: `EXCLUDE`, `EXCEPT` and `REPLACE`.

use std::collections::HashSet;

use datafusion::sql::sqlparser::ast::{
    ExceptSelectItem, ExcludeSelectItem, Ident, ObjectName, ReplaceSelectElement,
    ReplaceSelectItem, WildcardAdditionalOptions,
};

use super::{At, Checked, Refused};

/// Refuses what is not carried out.
pub(super) fn wildcard(options: &WildcardAdditionalOptions) -> Checked {
    let WildcardAdditionalOptions {
        wildcard_token,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    let from = || At::From(wildcard_token.0.span);
    if opt_ilike.is_some() {
        return Refused::hinted(
            "ILIKE",
            from(),
            "name the columns, or leave out some: * EXCLUDE (…)",
        );
    }
    if opt_rename.is_some() {
        return Refused::hinted("RENAME", from(), "name the columns: a AS b");
    }
    if let Some(alias) = opt_alias {
        return Refused::hinted(&alias.value, At::Here(alias.span), "name the columns");
    }
    let mut named: Vec<&Ident> = vec![];
    match opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => named.extend(last_part(name)),
        Some(ExcludeSelectItem::Multiple(names)) => {
            named.extend(names.iter().filter_map(last_part));
        }
        None => {}
    }
    if let Some(ExceptSelectItem { first_element, additional_elements }) = opt_except {
        named.push(first_element);
        named.extend(additional_elements);
    }
    if let Some(ReplaceSelectItem { items }) = opt_replace {
        named.extend(items.iter().map(|item| {
            let ReplaceSelectElement { expr: _, column_name, as_keyword: _ } = item.as_ref();
            column_name
        }));
    }
    each_once(&named)
}

fn last_part(name: &ObjectName) -> Option<&Ident> {
    name.0.last().and_then(|part| part.as_ident())
}

/// Refuses a column that is left out or replaced behind a star more than once.
fn each_once(names: &[&Ident]) -> Checked {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(&name.value) {
            let message = format!("column '{}' is named twice behind the star", name.value);
            let hint = "leave it out, or replace it, once";
            return Refused::with_hint(&name.value, At::Here(name.span), &message, hint);
        }
    }
    Ok(())
}
