"""The string under each field of a struct, which Python itself does not keep: read from its source.

Pages of the reference and the schema of the job spec take their descriptions from here.
"""

import ast
import inspect

import msgspec


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Read what is said of each field; of a field without a string its name."""
    (tree,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(tree, ast.ClassDef)
    docs, last = {}, ""
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                docs[name] = last = name
            case ast.Expr(value=ast.Constant(value=str(text))) if last:
                docs[last] = inspect.cleandoc(text)
            case _:
                last = ""
    return docs
