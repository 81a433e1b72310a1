//! The dialect of all SQL here: the parser's generic one, with an `IS DISTINCT FROM` that ends, and
//! fewer words that cannot be the name of a column.
//!
//! `a IS DISTINCT FROM b AND c` is `(a IS DISTINCT FROM b) AND c`; the parser by itself takes all
//! that follows for the right side. How tightly operators bind is the parser's own otherwise.

use std::any::TypeId;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

/// The generic dialect, but for one operator and some names.
#[derive(Debug)]
pub(crate) struct OurDialect;

/// Methods that the generic dialect answers, by name: those of a character, and those of nothing.
macro_rules! as_generic {
    ($($letter:ident)*; $($trait_of:ident)*) => {
        $(fn $letter(&self, ch: char) -> bool {
            GenericDialect.$letter(ch)
        })*
        $(fn $trait_of(&self) -> bool {
            GenericDialect.$trait_of()
        })*
    };
}

impl Dialect for OurDialect {
    /// The parser asks for it where it does something for some dialects only.
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    /// The parser reserves words of clauses that no statement here has. Here they are names, also
    /// behind a comma, where such a word would end the list of columns.
    fn is_column_alias(&self, word: &Keyword, parser: &mut Parser<'_>) -> bool {
        let clauses_of_others =
            [Keyword::SORT, Keyword::TOP, Keyword::VIEW, Keyword::CLUSTER, Keyword::DISTRIBUTE];
        clauses_of_others.contains(word) || GenericDialect.is_column_alias(word, parser)
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        expr: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        let is = |at: usize, keyword: Keyword| match parser.peek_nth_token(at).token {
            Token::Word(word) => word.keyword == keyword,
            _ => false,
        };
        let not = usize::from(is(1, Keyword::NOT));
        let found =
            is(0, Keyword::IS) && is(1 + not, Keyword::DISTINCT) && is(2 + not, Keyword::FROM);
        if !found {
            return None;
        }
        for _ in 0..3 + not {
            parser.next_token();
        }
        let precedence = precedence.max(self.prec_value(Precedence::Is));
        let made = parser.parse_subexpr(precedence).map(|right| {
            let (left, right) = (Box::new(expr.clone()), Box::new(right));
            match not {
                0 => Expr::IsDistinctFrom(left, right),
                _ => Expr::IsNotDistinctFrom(left, right),
            }
        });
        Some(made)
    }

    as_generic! {
        is_delimited_identifier_start
        is_identifier_start
        is_identifier_part;
        supports_unicode_string_literal
        supports_partition_by_after_order_by
        supports_array_join_syntax
        supports_group_by_expr
        supports_group_by_with_modifier
        supports_left_associative_joins_without_parens
        supports_connect_by
        supports_match_recognize
        supports_pipe_operator
        supports_start_transaction_modifier
        supports_window_function_null_treatment_arg
        supports_dictionary_syntax
        supports_window_clause_named_window_reference
        supports_parenthesized_set_variables
        supports_select_wildcard_except
        support_map_literal_syntax
        allow_extract_custom
        allow_extract_single_quotes
        supports_extract_comma_syntax
        supports_create_view_comment_syntax
        supports_parens_around_table_factor
        supports_values_as_table_factor
        supports_create_index_with_clause
        supports_explain_with_utility_options
        supports_limit_comma
        supports_update_order_by
        supports_from_first_select
        supports_projection_trailing_commas
        supports_asc_desc_in_column_definition
        supports_try_convert
        supports_bitwise_shift_operators
        supports_comment_on
        supports_load_extension
        supports_named_fn_args_with_assignment_operator
        supports_struct_literal
        supports_empty_projections
        supports_nested_comments
        supports_multiline_comment_hints
        supports_user_host_grantee
        supports_string_escape_constant
        supports_array_typedef_with_brackets
        supports_match_against
        supports_set_names
        supports_comma_separated_set_assignments
        supports_filter_during_aggregation
        supports_select_wildcard_exclude
        supports_data_type_signed_suffix
        supports_interval_options
        supports_quote_delimited_string
        supports_select_wildcard_replace
        supports_select_wildcard_ilike
        supports_select_wildcard_rename
        supports_optimize_table
        supports_install
        supports_detach
        supports_prewhere
        supports_with_fill
        supports_limit_by
        supports_interpolate
        supports_settings
        supports_select_format
        supports_comment_optimizer_hint
        supports_constraint_keyword_without_name
        supports_key_column_option
        supports_comma_separated_trim
        supports_cte_without_as
        supports_select_item_multi_column_alias
        supports_xml_expressions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(sql: &str) -> String {
        let parser = Parser::new(&OurDialect).try_with_sql(sql);
        parser.and_then(|mut parser| parser.parse_expr()).map_or_else(
            |error| error.to_string(),
            |expr| format!("{expr:?}").split('(').next().unwrap_or_default().to_owned(),
        )
    }

    #[test]
    fn what_follows_is_distinct_from_is_not_its_right_side() {
        assert!(parsed("a IS DISTINCT FROM b AND c").starts_with("BinaryOp"));
        assert!(parsed("NOT a IS NOT DISTINCT FROM b OR c").starts_with("BinaryOp"));
        assert!(parsed("a IS DISTINCT FROM b IS TRUE").starts_with("IsTrue"));
        assert!(parsed("a IS DISTINCT FROM b + 1").starts_with("IsDistinctFrom"));
        assert!(parsed("a IS DISTINCT FROM b = c").starts_with("IsDistinctFrom"));
    }
}
