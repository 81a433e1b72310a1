//! The types of columns as DDL has them, also those with parts, in Flink's form: `ARRAY<t>`,
//! `MAP<key, value>`, `ROW<name t, …>`; and as others write it, `STRUCT(name t, …)`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::diagnostics::Diagnostic;
use crate::text::syntax::{Cursor, element, is_word, parser, syntax_error};
use crate::text::types::{TYPE_NAMES, arrow_type};

/// Types within types at most.
const LEVELS_MAX: usize = 64;

/// Reads a type.
///
/// # Errors
/// Where it is none.
pub(crate) fn data_type(cursor: &mut Cursor<'_>) -> Result<DataType, Diagnostic> {
    let place = cursor.place();
    let mut reader = Reader { cursor, levels: 0, half: false };
    let read = reader.any()?;
    if reader.half { Err(Diagnostic::at(place, "the type has a '>' too many")) } else { Ok(read) }
}

struct Reader<'a, 'b> {
    cursor: &'a mut Cursor<'b>,
    levels: usize,
    /// Whether the second `>` of a token `>>` has not closed anything yet.
    half: bool,
}

impl Reader<'_, '_> {
    fn any(&mut self) -> Result<DataType, Diagnostic> {
        let opened = self.cursor.peek_at(1).map(|token| &token.token);
        let (angle, round) = (opened == Some(&Token::Lt), opened == Some(&Token::LParen));
        let starts = |word: &str| self.cursor.peek().is_some_and(|token| is_word(token, word));
        if angle && starts("ARRAY") {
            let element = self.parts(Self::any)?;
            return Ok(DataType::List(Arc::new(Field::new_list_field(element, true))));
        }
        if (angle || round) && starts("MAP") {
            return self.parts(Self::map);
        }
        if (angle || round) && (starts("ROW") || starts("STRUCT")) {
            return self.parts(Self::row);
        }
        self.plain()
    }

    /// The text between the brackets behind the next word.
    fn parts<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Diagnostic>,
    ) -> Result<T, Diagnostic> {
        let place = self.cursor.place();
        self.levels += 1;
        if self.levels > LEVELS_MAX {
            return Err(Diagnostic::at(place, format!("a type has at most {LEVELS_MAX} levels")));
        }
        self.cursor.skip(1);
        let angle = self.cursor.token(&Token::Lt);
        if !angle {
            self.cursor.skip(1);
        }
        let parts = read(self)?;
        if angle {
            self.close()?;
        } else if !self.cursor.token(&Token::RParen) {
            return Err(self.cursor.expected("',' or ')'"));
        }
        self.levels -= 1;
        Ok(parts)
    }

    fn close(&mut self) -> Result<(), Diagnostic> {
        if std::mem::take(&mut self.half) || self.cursor.token(&Token::Gt) {
            return Ok(());
        }
        self.half = self.cursor.token(&Token::ShiftRight);
        if self.half { Ok(()) } else { Err(self.cursor.expected("',' or '>'")) }
    }

    fn map(&mut self) -> Result<DataType, Diagnostic> {
        let key = self.any()?;
        if self.half || !self.cursor.token(&Token::Comma) {
            return Err(self.cursor.expected("',' and the type of the values"));
        }
        let value = self.any()?;
        let fields = [Field::new("key", key, false), Field::new("value", value, true)];
        let entries = Field::new("entries", DataType::Struct(Fields::from(fields.to_vec())), false);
        Ok(DataType::Map(Arc::new(entries), false))
    }

    fn row(&mut self) -> Result<DataType, Diagnostic> {
        let mut fields: Vec<Field> = vec![];
        loop {
            let name = self.cursor.ident("the name of a field")?;
            if fields.iter().any(|field| *field.name() == name.text) {
                let message = format!("there are two fields '{}'", name.text);
                return Err(Diagnostic::at(name.place, message));
            }
            let of = self.any()?;
            let not_null = !self.half && self.cursor.words("NOT NULL");
            fields.push(Field::new(name.text, of, !not_null));
            if self.half || !self.cursor.token(&Token::Comma) {
                return Ok(DataType::Struct(Fields::from(fields)));
            }
        }
    }

    /// A type without parts, or one in the form of another dialect.
    fn plain(&mut self) -> Result<DataType, Diagnostic> {
        let place = self.cursor.place();
        let Some(TokenWithSpan { token: Token::Word(word), .. }) = self.cursor.peek() else {
            return Err(self.cursor.expected("a type"));
        };
        let shown = word.to_string().to_uppercase();
        let mut types = parser(element(self.cursor.rest(), true));
        let sql_type = types.parse_data_type();
        let sql_type = sql_type.map_err(|error| syntax_error(&error, self.cursor.rest()))?;
        let read = arrow_type(&sql_type).map_err(|message| {
            let unknown = message.starts_with("unknown type");
            let error = Diagnostic::at(place, message);
            if unknown { error.nearest("types", &shown, TYPE_NAMES.iter().copied()) } else { error }
        })?;
        self.cursor.skip(types.index());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;
    use crate::text::types::sql_name;

    fn of(sql: &str) -> Result<DataType, String> {
        let tokens = split(sql).expect("tokens");
        let mut cursor = Cursor::new(&tokens[0]);
        let read = data_type(&mut cursor).map_err(|error| error.message)?;
        assert!(cursor.peek().is_none(), "{sql}");
        Ok(read)
    }

    #[test]
    fn types_with_parts_are_named_as_they_were_written() {
        for sql in [
            "ARRAY<INT>",
            "ARRAY<ARRAY<STRING>>",
            "ROW<x INT, y ARRAY<STRING>>",
            "ROW<x ROW<y ROW<z TIMESTAMP(3)>>, w MAP<STRING, ARRAY<ARRAY<DOUBLE>>>>",
            "MAP<STRING, ROW<a DECIMAL(9, 4)>>",
            "ROW<x INT NOT NULL>",
        ] {
            assert_eq!(sql_name(&of(sql).expect(sql)), sql);
        }
        assert_eq!(of("STRUCT(a INT, b MAP(STRING, INT))"), of("ROW<a INT, b MAP<STRING, INT>>"));
        assert_eq!(of("INT[]"), of("ARRAY<INT>"));
    }

    #[test]
    fn a_type_that_is_none_is_told() {
        let error = |sql: &str| of(sql).expect_err(sql);
        assert!(error("ARRAY<INT>>").contains("'>' too many"), "{}", error("ARRAY<INT>>"));
        assert!(error("ROW<x INT, x INT>").contains("two fields 'x'"));
        assert!(error("ROW<x INTT>").contains("unknown type 'INTT'"));
        assert!(error("ROW<INT>").contains("expected a type"), "{}", error("ROW<INT>"));
        assert!(error("MAP<INT>").contains("type of the values"), "{}", error("MAP<INT>"));
        assert!(error("ROW<x INT").contains("'>'"), "{}", error("ROW<x INT"));
        let deep = format!("{}INT{}", "ARRAY<".repeat(100), ">".repeat(100));
        assert!(error(&deep).contains("64 levels"));
    }
}
