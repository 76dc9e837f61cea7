//! Expressions over columns.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use dayfly_frame::datafusion::arrow::datatypes::DataType;
use dayfly_frame::datafusion::common::{Column, ScalarValue};
use dayfly_frame::datafusion::execution::session_state::SessionStateDefaults;
use dayfly_frame::datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction, Sort, WindowFunction};
use dayfly_frame::datafusion::logical_expr::{
    AggregateUDF, BinaryExpr, Case, Cast, Expr as Inner, ExprFunctionExt, Operator, ScalarUDF, WindowFunctionDefinition,
    WindowUDF,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

/// DataFusion's functions by name.
struct Functions {
    scalar: HashMap<String, Arc<ScalarUDF>>,
    aggregate: HashMap<String, Arc<AggregateUDF>>,
    window: HashMap<String, Arc<WindowUDF>>,
}

static FUNCTIONS: LazyLock<Functions> = LazyLock::new(|| {
    let named = |function: Arc<ScalarUDF>| (function.name().to_owned(), function);
    Functions {
        scalar: SessionStateDefaults::default_scalar_functions().into_iter().map(named).collect(),
        aggregate: SessionStateDefaults::default_aggregate_functions()
            .into_iter()
            .map(|function| (function.name().to_owned(), function))
            .collect(),
        window: SessionStateDefaults::default_window_functions()
            .into_iter()
            .map(|function| (function.name().to_owned(), function))
            .collect(),
    }
});

fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("there is no function {name}"))
}

/// An expression over the columns of a frame.
#[pyclass(frozen, skip_from_py_object, module = "dayfly_frames._frames")]
#[derive(Clone)]
pub struct Expr(Inner);

impl Expr {
    /// DataFusion's expression.
    pub fn inner(&self) -> Inner {
        self.0.clone()
    }
}

/// DataFusion's expressions of these.
pub fn all(expressions: &[Py<Expr>]) -> Vec<Inner> {
    expressions.iter().map(|expression| expression.get().inner()).collect()
}

#[pymethods]
impl Expr {
    /// The column of this name, whatever characters it has.
    #[staticmethod]
    fn column(name: String) -> Self {
        Self(Inner::Column(Column::new_unqualified(name)))
    }

    /// A constant: None, a truth, an integer of 64 bits, a number, a text or bytes.
    #[staticmethod]
    fn literal(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let value = if value.is_none() {
            ScalarValue::Null
        } else if value.is_instance_of::<PyBool>() {
            ScalarValue::Boolean(Some(value.extract()?))
        } else if value.is_instance_of::<PyInt>() {
            let number = value.extract::<i64>();
            ScalarValue::Int64(Some(number.map_err(|_| {
                PyOverflowError::new_err(format!("{value} has more than 64 bits; write it as a decimal or a number"))
            })?))
        } else if value.is_instance_of::<PyFloat>() {
            ScalarValue::Float64(Some(value.extract()?))
        } else if value.is_instance_of::<PyString>() {
            ScalarValue::Utf8(Some(value.extract()?))
        } else if value.is_instance_of::<PyBytes>() {
            ScalarValue::Binary(Some(value.extract()?))
        } else {
            let kind = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!("a {kind} is no constant of an expression")));
        };
        Ok(Self(Inner::Literal(value, None)))
    }

    /// A date: days since 1970-01-01.
    #[staticmethod]
    fn date(days: i32) -> Self {
        Self(Inner::Literal(ScalarValue::Date32(Some(days)), None))
    }

    /// A time: microseconds since 1970-01-01T00:00.
    #[staticmethod]
    fn timestamp(microseconds: i64, zone: Option<String>) -> Self {
        let zone = zone.map(Into::into);
        Self(Inner::Literal(
            ScalarValue::TimestampMicrosecond(Some(microseconds), zone),
            None,
        ))
    }

    /// Two expressions and an operator of SQL between them.
    fn binary(&self, operator: &str, right: &Self) -> PyResult<Self> {
        let operator = match operator {
            "+" => Operator::Plus,
            "-" => Operator::Minus,
            "*" => Operator::Multiply,
            "/" => Operator::Divide,
            "%" => Operator::Modulo,
            "=" => Operator::Eq,
            "!=" => Operator::NotEq,
            "<" => Operator::Lt,
            "<=" => Operator::LtEq,
            ">" => Operator::Gt,
            ">=" => Operator::GtEq,
            "and" => Operator::And,
            "or" => Operator::Or,
            other => return Err(PyValueError::new_err(format!("there is no operator {other}"))),
        };
        let (left, right) = (Box::new(self.inner()), Box::new(right.inner()));
        Ok(Self(Inner::BinaryExpr(BinaryExpr::new(left, operator, right))))
    }

    /// The opposite of a truth.
    fn negated(&self) -> Self {
        Self(Inner::Not(Box::new(self.inner())))
    }

    /// The expression under a name.
    fn alias(&self, name: &str) -> Self {
        Self(self.inner().alias(name))
    }

    /// Whether the value is null.
    fn is_null(&self) -> Self {
        Self(self.inner().is_null())
    }

    /// Whether the value is one of these.
    fn in_list(&self, values: Vec<Py<Self>>) -> Self {
        Self(self.inner().in_list(all(&values), false))
    }

    /// The value as another type, named as Arrow does: `Int64`, `Float64`, `Utf8`, `Timestamp(Microsecond, None)`.
    fn cast(&self, data_type: &str) -> PyResult<Self> {
        let data_type = DataType::from_str(data_type)
            .map_err(|_| PyValueError::new_err(format!("there is no type {data_type}")))?;
        Ok(Self(Inner::Cast(Cast::new(Box::new(self.inner()), data_type))))
    }

    /// A function of SQL, row by row.
    #[staticmethod]
    fn scalar(name: &str, arguments: Vec<Py<Self>>) -> PyResult<Self> {
        let function = FUNCTIONS.scalar.get(name).ok_or_else(|| unknown(name))?;
        let call = ScalarFunction::new_udf(function.clone(), all(&arguments));
        Ok(Self(Inner::ScalarFunction(call)))
    }

    /// A function of SQL over the rows of a group.
    #[staticmethod]
    fn aggregate(name: &str, arguments: Vec<Py<Self>>, distinct: bool) -> PyResult<Self> {
        let function = FUNCTIONS.aggregate.get(name).ok_or_else(|| unknown(name))?;
        let call = AggregateFunction::new_udf(function.clone(), all(&arguments), distinct, None, Vec::new(), None);
        Ok(Self(Inner::AggregateFunction(call)))
    }

    /// A window function of SQL, such as `row_number`.
    #[staticmethod]
    fn window(name: &str, arguments: Vec<Py<Self>>) -> PyResult<Self> {
        let function = FUNCTIONS.window.get(name).ok_or_else(|| unknown(name))?;
        Ok(Self(WindowFunction::new(function.clone(), all(&arguments)).into()))
    }

    /// An aggregate or a window function over the rows that have the same values in these expressions.
    fn over(&self, partition_by: Vec<Py<Self>>, order_by: Vec<(Py<Self>, bool)>) -> PyResult<Self> {
        let window = match self.inner() {
            Inner::AggregateFunction(call) => {
                WindowFunction::new(WindowFunctionDefinition::AggregateUDF(call.func), call.params.args).into()
            }
            window @ Inner::WindowFunction(_) => window,
            _ => {
                return Err(PyTypeError::new_err(
                    "over() needs an aggregate directly before it, such as col(\"x\").sum().over(\"key\")",
                ));
            }
        };
        let order_by = order_by.iter();
        let order_by = order_by.map(|(expression, descending)| sorted(expression.get(), *descending));
        let built = window
            .partition_by(all(&partition_by))
            .order_by(order_by.collect())
            .build();
        built.map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The value of the first condition that holds.
    #[staticmethod]
    fn case(branches: Vec<(Py<Self>, Py<Self>)>, otherwise: Option<&Self>) -> Self {
        let branches = branches.iter();
        let boxed = |expression: &Py<Self>| Box::new(expression.get().inner());
        let branches = branches.map(|(when, then)| (boxed(when), boxed(then)));
        let otherwise = otherwise.map(|expression| Box::new(expression.inner()));
        Self(Inner::Case(Case::new(None, branches.collect(), otherwise)))
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

/// An order of rows. Nulls come last in both directions, as in Polars.
pub fn sorted(expression: &Expr, descending: bool) -> Sort {
    Sort::new(expression.inner(), !descending, false)
}
